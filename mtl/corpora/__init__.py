"""Corpora: readers, the EWT-5 build, the generated corpus, and their figures."""
