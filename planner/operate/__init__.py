"""What becomes of a plan: the files that start it, whether it still fits its traffic, and how it follows the hours."""
