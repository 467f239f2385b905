"""A generated corpus with all five layers."""
