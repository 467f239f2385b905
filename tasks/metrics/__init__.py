"""Scores of annotations against gold, counted as the official scorers count them."""
