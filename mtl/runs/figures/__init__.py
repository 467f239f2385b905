"""Figures, with tables beside them, that are drawn from folders of runs; `table.py` lists them."""
