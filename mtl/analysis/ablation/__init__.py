"""Worth by ablation: what scores lose without a head."""
