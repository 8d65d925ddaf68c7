"""What is asked of a fleet that stands or of many: evaluate, what if, hours of the day, classes of requests."""
