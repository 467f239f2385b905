"""Measures without parameters on attention heads, and their chance levels."""
