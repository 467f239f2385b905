"""Studies: a grid of runs, carried out by many processes on one folder, and what follows from them."""
