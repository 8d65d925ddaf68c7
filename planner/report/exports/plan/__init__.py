"""What a plan can be written as, to run it."""
