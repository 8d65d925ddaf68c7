"""The question a plan answers: read once, checked whole."""
