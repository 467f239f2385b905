"""Templates and other files of the page."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from mtl.probes.report import number_format


@cache
def environment(package: str = "mtl.probes.report") -> Environment:
    """The Jinja environment of a package's templates."""
    made = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": False}
    made.filters |= {
        "number": number_format.number,
        "signed": number_format.signed,
        "chance": number_format.chance,
        "sort_key": number_format.sort_key,
    }
    made.globals |= {"value_text": number_format.value_text}
    return made


def text_of(name: str, package: str = "mtl.probes.report") -> str:
    """The text of a package's file."""
    return (files(package) / name).read_text(encoding="utf-8")
