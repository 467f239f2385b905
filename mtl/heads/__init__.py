"""Where a transformer keeps its attention heads, and how they are observed, scaled, gated and cut."""
