"""What a schedule can be written as, to run it."""
