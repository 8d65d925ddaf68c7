"""Settings and certificates for one replica and its scheduler: stability, batching, WAIT."""
