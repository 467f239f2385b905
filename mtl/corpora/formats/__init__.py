"""The readers of corpus formats, and the writers of some."""
