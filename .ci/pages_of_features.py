"""A hook of mkdocs: where a feature's folder is gone, so are its pages' entries and links to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_config(config: Any) -> Any:
    """Leave pages that are gone out of the navigation."""
    gone = {page for pages in _gone(config).values() for page in pages}
    config["nav"] = _kept(config["nav"], gone)
    return config


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Turn links to what is gone into their texts."""
    for name, pages in _gone(config).items():
        ours = "|".join(map(re.escape, pages))
        markdown = re.sub(rf"\[([^\]]*)\]\((?:\.\./)*(?:{ours})(?:#[^)]*)?\)", r"\1", markdown)
        markdown = re.sub(rf"\[([^\]]*)\]\[mtl\.(?:probes\.)?{name}\.[^\]]*\]", r"\1", markdown)
    return markdown


def _gone(config: Any) -> dict[str, list[str]]:
    """The pages of features without a folder, by the feature's name."""
    features: dict[str, list[str]] = config["extra"]["features"]
    return {name: pages for name, pages in features.items() if not (ROOT / "mtl" / name).is_dir()}


def _kept(items: list[Any], gone: set[str]) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        [(title, place)] = item.items() if isinstance(item, dict) else [("", item)]
        if isinstance(place, list):
            kept.append({title: _kept(place, gone)})
        elif place not in gone:
            kept.append(item)
    return kept
