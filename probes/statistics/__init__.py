"""Statistics over several runs: overlap of masks, agreement, prediction, comparisons, and tools for tests."""
