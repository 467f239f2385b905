"""The middle floor: measurements on attention heads, their statistics and figures."""
