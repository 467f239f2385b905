"""Which runs can be compared, and tables over several runs."""
