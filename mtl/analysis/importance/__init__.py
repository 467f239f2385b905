"""Worth by gradients: how much the loss depends on each head."""
