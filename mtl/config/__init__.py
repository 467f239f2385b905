"""Every key of a run, how files and flags become typed values, and which keys make two runs different."""
