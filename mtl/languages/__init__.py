"""Raw text in languages other than English."""
