"""GPUs and models as records, how a model is spread over GPUs, its iteration times, and the engines that run it."""
