"""Results as files to deploy: a folder per result, a file per format, each with ``render``."""
