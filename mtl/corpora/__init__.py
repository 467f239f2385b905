"""Corpora: formats and their readers, the build of EWT-5 and EWT-10, the generated corpus, and counts."""
