"""One file per paper: the numbers it prints, ours beside them, and why they differ."""
