"""The laboratory of the Stem Cell Hypothesis: statistics, figures, parts of the report."""
