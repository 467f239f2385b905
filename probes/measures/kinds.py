"""The kinds of tasks for whose labels heads are probed. Without torch, since plans of studies import this."""

PROBED_KINDS = ("tags", "lemmas", "spans", "tree", "graph", "constituents", "frames", "class")
"""The same as the keys of `items.BY_KIND`."""
