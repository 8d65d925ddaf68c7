"""Mixed batching under a token budget: one replica and pools of them, in closed form."""
