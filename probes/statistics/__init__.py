"""Statistics over the masks and measures of several runs: skill, overlap, claims and losses."""
