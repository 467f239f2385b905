"""Worth by layer-wise relevance propagation."""
