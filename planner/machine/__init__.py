"""GPUs and models as records, and how a model is spread over GPUs."""
