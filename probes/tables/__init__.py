"""Tidy tables of heads, labels, gates and curves, and how they are written."""
