"""The jobs of a study: what they are made of, where they are kept, what changes, and how far they are."""
