"""Which runs can be set side by side, and the tables over them."""
