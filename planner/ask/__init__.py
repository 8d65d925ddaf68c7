"""What is asked of plans and fleets, a file a question: evaluate, what if, choices, hours of the day, stability, batching."""
