"""Sweeps: W&B's sweep files, carried out by W&B or, without a server, by Optuna in a folder."""
