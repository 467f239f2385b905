"""Overlap of the mixing vectors of collaborative models, which are read from their folders."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import NamedTuple

import polars as pl
import torch
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.collaborative_attention import CollaborativeAttention
from mtl.heads.families import family_of
from mtl.heads.load import load_pruned
from mtl.probes.stem_cell.statistics.mixing import OVERLAPS, absolute_cosines


class SharedComponents(NamedTuple):
    """What the config.json of a saved model records about components that its heads share."""

    family: str
    """The model's type, as transformers names it."""
    of_sites: dict[str, int]
    """Their number per site; empty if heads share none."""


def components_in(folder: Path) -> SharedComponents:
    """The components that heads share in a saved model; raises `InputError` if there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} holds no model (no config.json): use runs, or an encoder's folder")
    try:
        config = json.loads(path.read_bytes())
        of_sites = dict(config.get("collaborative_components") or {})
        return SharedComponents(str(config.get("model_type")), of_sites)
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}): make the model again") from error


def overlaps_in(folder: Path, run: str, seed: int) -> pl.DataFrame:
    """The overlaps of the heads of a saved collaborative model, with the schema `OVERLAPS`."""
    table = mixing_overlaps(load_pruned(folder, torch.float32))
    return table.select(run=pl.lit(run), seed=pl.lit(seed), **{name: name for name in table.columns}).cast(
        OVERLAPS
    )


@torch.no_grad()
def mixing_overlaps(model: PreTrainedModel) -> pl.DataFrame:
    """Per layer and pair of heads, the absolute cosine of their mixing vectors.

    Only the product of a component's query vector, key vector and weights is determined: doubling the weights
    and halving the query vector changes nothing. So query and key vectors are scaled to length 1, and weights
    are multiplied by their lengths.
    """
    rows = []
    for attention in attentions(model, family_of(model)):
        if not isinstance(attention.module, CollaborativeAttention):
            continue
        queries, keys = attention.module.shared()
        sizes = queries.double().norm(dim=0) * keys.double().norm(dim=0)
        cosines = absolute_cosines((attention.module.mixing.double() * sizes).numpy())
        for one, other in itertools.combinations(range(len(cosines)), 2):
            heads = attention.remaining[one], attention.remaining[other]
            rows.append((*attention.site, *heads, float(cosines[one, other])))
    columns = {name: kind for name, kind in OVERLAPS.items() if name not in ("run", "seed")}
    return pl.DataFrame(rows, schema=columns, orient="row")
