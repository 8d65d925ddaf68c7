"""What arrives: joint distributions of input and output lengths, categories and arrival processes, and where they came from."""
