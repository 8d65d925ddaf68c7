"""What a pool of replicas does with given requests: replayed exactly by the kernel, or by the same rules in Python."""
