"""What is known, looked up and laid out: GPUs, models, offers, profiles, workloads. A function each, which makes a `Listing`."""
