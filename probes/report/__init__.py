"""One self-contained page on a study."""
