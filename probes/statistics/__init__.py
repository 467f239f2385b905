"""Statistics over several runs: overlap of masks, contest, claims and losses, agreement, remedies."""
