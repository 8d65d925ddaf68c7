"""One reader per file format, recognised by content."""
