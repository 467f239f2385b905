"""Collaborative attention: heads that share query and key components (Cordonnier et al. 2020)."""
