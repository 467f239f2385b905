"""The kinds of tasks whose labels heads are probed for; without torch, for plans of studies."""

PROBED_KINDS = ("tags", "lemmas", "spans", "tree", "graph", "constituents", "frames", "class")
"""The keys of `items.BY_KIND`."""
