"""Figures for papers, drawn from tables and arrays."""
