"""Tidy tables: of heads, labels, gates, curves, and how they are written."""
