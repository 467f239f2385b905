"""One run on disk: its files, and what its result is made of."""
