"""One reader, and where there is one the writer, for each corpus format."""
