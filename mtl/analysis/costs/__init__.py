"""The energy, operations and time of models."""
