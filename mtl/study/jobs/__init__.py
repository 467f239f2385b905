"""The jobs of a study: what is wanted, what there is, and the plan that follows."""
