"""A run's folder on disk, and what is read out of many of them: tables, figures, the contents of a report."""
