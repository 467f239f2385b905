"""Measures on attention heads without parameters, and their chance levels."""
