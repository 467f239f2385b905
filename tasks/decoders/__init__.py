"""Decoders: scores, losses and annotations from word vectors, and the targets of the losses."""
