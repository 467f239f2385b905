"""A first run on a small sample, step by step, and its report beside an archived study."""
