"""The report: one self-contained page on a study."""
