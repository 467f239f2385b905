"""Worth by ablation: scores without a head."""
