"""The laboratory of the Stem Cell Hypothesis, which the core knows by registries only."""
