"""Statistics of the laboratory."""
