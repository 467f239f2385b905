"""The report: one self-contained page on the runs of a folder."""
