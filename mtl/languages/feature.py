"""What raw text in other languages adds to the core."""

from __future__ import annotations

from mtl.features import Feature

FEATURE = Feature(splitters={"spacy": "mtl.languages.splitter:splitter_of"})
