"""The top floor: encoders, head gates, training, runs, studies and the command line."""
