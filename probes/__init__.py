"""The middle floor: measures on attention heads, their statistics, figures and report."""
