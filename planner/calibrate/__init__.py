"""What to measure on a user's machine, how, and how to turn it into a profile that says how far to trust it."""
