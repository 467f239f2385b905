"""Worth by gradients."""
