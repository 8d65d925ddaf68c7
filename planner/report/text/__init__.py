"""Words of results, a module for each kind of question."""
