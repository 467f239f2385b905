"""Pruning curves: scores with fewer and fewer heads."""
