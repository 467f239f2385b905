"""Figures and the tables beside them, drawn from the folders of runs; `table.py` lists them."""
