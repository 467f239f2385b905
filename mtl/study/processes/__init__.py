"""The processes that carry out a study: of one machine, or of a Ray cluster."""
