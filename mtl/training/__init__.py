"""One training run: the step, balancers, gate costs, evaluation, checkpoints, ranks."""
