"""One run on disk: its files, and what its result depends on."""
