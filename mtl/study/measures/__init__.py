"""What a study measures on the heads of its finished runs."""
