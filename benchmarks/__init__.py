"""Benchmarks: comparisons with other programs and with the bare encoder."""
