"""Pruning curves: their tables, figures and part of the report."""
