"""Values as other programs spell them."""

from __future__ import annotations

import ast
import json


def as_yaml(text: str) -> str:
    """A value that Python has spelt (`None`, `{'lr': None}`), as W&B's agent does, in YAML's spelling."""
    if "None" not in text:
        return text
    try:
        return json.dumps(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):  # a text that such a word stands in
        return text
