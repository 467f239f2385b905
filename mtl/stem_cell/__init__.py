"""The laboratory of the Stem Cell Hypothesis, a feature."""
