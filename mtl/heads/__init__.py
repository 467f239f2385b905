"""Where a transformer keeps its attention heads, and what is done to one: observe, scale, gate, cut."""
