"""Timings; each prints ratios measured in one run on one machine."""
