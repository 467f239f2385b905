"""Figures of the laboratory, from run folders."""
