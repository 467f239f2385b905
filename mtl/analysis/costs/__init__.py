"""Energy, operations and times of models."""
