"""What a checkpoint's files say of its sizes, read before a configuration or a model is made of them.

A folder may come from a stranger. Its config.json decides how much memory a model takes, and how long making
it takes; its weights are what was downloaded. Sizes that do not fit the weights are refused.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mtl.errors import InputError
from mtl.tasks.in_words import counted

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

_COUNT = re.compile(r"(^n_|^num_|_)(\w+_)*(layers?|groups?|blocks?)$|^depth|^layers$|group_num$|num_stages")
"""Keys of config.json with numbers of modules that are made one by one."""
_SIZE = re.compile(
    r"size|dim|hidden|emb|inner|^d_|ffn|vocab|position|ctx|head|expert|label|bucket|rank|width|kernel|state|max_seq"
)
_NO_SIZE = re.compile(r"window|theta|factor|eps|_ids?$")
_POSITIONS = re.compile(r"max\w*_positions?|n_positions|n_ctx|max_seq")
_ROTARY = re.compile(r"rope")
_HIDDEN = ("hidden_size", "d_model", "dim", "n_embd", "emb_dim")
_MOST_MODULES = 1000
"""Maximum of a count, whatever the weights: ALBERT's layers share theirs."""
_MOST = 1 << 26
"""Maximum of a size, and of the numbers that a model may have besides those that its weights account for."""
_COMPUTED = 1 << 20
"""Maximum number of values for positions besides those that the weights account for: Marian computes them."""
_TIMES = 4
"""How often a model may hold the same numbers before its embeddings are tied."""
_LONGEST_HEADER = 100_000_000
"""The limit of safetensors itself."""


class Stored(NamedTuple):
    """The weights in a folder."""

    numbers: int
    tensors: int


def stored_in(folder: Path, pattern: str = "*") -> Stored | None:
    """What the weights in a folder hold, from the headers of its files; `None` if there are none.

    Of a pickle only its length is known, which is at least the number of numbers.
    """
    found = [Stored(*_of_header(path)) for path in sorted(folder.glob(f"{pattern}.safetensors"))]
    found += [Stored(path.stat().st_size, 0) for path in folder.glob(f"{pattern}.bin")]
    return Stored(sum(each.numbers for each in found), sum(each.tensors for each in found)) if found else None


def _of_header(path: Path) -> tuple[int, int]:
    """Numbers and tensors of a safetensors file; none if its header is damaged, which its reader reports."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
        spans = [each["data_offsets"] for name, each in header.items() if name != "__metadata__"]
        # A number has at least half a byte, but no more bytes are there than the file has.
        numbers = sum(_product(each["shape"]) for name, each in header.items() if name != "__metadata__")
        return min(numbers, 2 * path.stat().st_size), len(spans)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return 0, 0


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def require_possible(config: Any, stored: Stored | None, where: str) -> None:
    """Raise `InputError` if the content of a config.json has sizes that no weights like these can have.

    This is what a model need not be made for: the number of its modules, and what is computed for each
    position.
    """
    most = max(_MOST_MODULES, stored.tensors if stored else 0)
    entries = list(_entries(config))
    for key, value in entries:
        limit = most if _COUNT.search(key) else _MOST
        if value > limit and (limit is most or (_SIZE.search(key) and not _NO_SIZE.search(key))):
            raise InputError(f"{where}: config.json has {key} {value:,}, and at most {limit:,} is possible")
    if stored is None or any(_ROTARY.search(key) for key, _ in _entries(config, whole=True)):
        return
    width = max((value for key, value in entries if key in _HIDDEN), default=1)
    for key, value in entries:
        if _POSITIONS.search(key) and value * width > _TIMES * stored.numbers + _COMPUTED:
            what = f"{key} {value:,} of width {width:,}"
            raise InputError(f"{where}: config.json has {what}, more than its weights have")


def _entries(config: Any, whole: bool = False) -> Iterator[tuple[str, Any]]:
    """The numbers in a JSON value with their keys; with `whole`, all keys."""
    pending = [("", config)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict):
            pending += ((str(name), each) for name, each in value.items())
        elif isinstance(value, list):
            pending += ((key, each) for each in value)
        elif whole or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield key, value


def _allowed(stored: Stored, config: Any) -> int:
    quantized = config.get("quantization_config") if isinstance(config, dict) else None
    return (8 if quantized else 1) * _TIMES * stored.numbers + _MOST


def require_fitting(model: nn.Module, stored: Stored | None, where: str, config: Any = None) -> None:
    """Raise `InputError` for a model (on `meta`) that is much larger than its weights."""
    numbers = sum(each.numel() for part in (model.parameters(), model.buffers()) for each in part)
    require_stored_numbers(numbers, stored, where, config)


def require_stored_numbers(numbers: int, stored: Stored | None, where: str, config: Any = None) -> None:
    """Raise `InputError` for a model of many more numbers than its weights have."""
    if stored is not None and numbers > _allowed(stored, config):
        raise InputError(
            f"{where}: its configuration makes a model of {counted(numbers, 'number')}, while its weights "
            f"have {stored.numbers:,}: was it changed?"
        )


def configuration(name: str, **of_files: Any) -> PretrainedConfig:
    """A checkpoint's configuration; its folder's code is not run.

    Args:
        name: a folder, or a name on the hub.
        of_files: `revision`, `cache_dir`, `token`, `local_files_only` and `subfolder`.

    Raises what transformers raises, and `InputError` for sizes that do not fit the weights in the folder.
    """
    from transformers import AutoConfig, PretrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    content, _ = PretrainedConfig.get_config_dict(name, **of_files)
    kind = content.get("model_type")
    if "auto_map" in content and kind not in CONFIG_MAPPING:
        raise InputError(f"models of type {str(kind)[:50]!r} need code of their own folder, which is not run")
    require_possible(content, weights_of(name, **of_files), name)
    return AutoConfig.from_pretrained(name, trust_remote_code=False, **of_files)


def tokenizer(name: str | Path, **of_files: Any) -> Any:
    """A checkpoint's tokenizer; its folder's code is not run."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, trust_remote_code=False, **of_files)


def weights_of(name: str | Path, **of_files: Any) -> Stored | None:
    """What the weights of a checkpoint hold; `None` if they are neither in a folder nor in the hub's cache.

    The arguments are those of `configuration`.
    """
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        of_cache = {key: of_files.get(key) for key in ("cache_dir", "revision")}
        found = try_to_load_from_cache(str(name), "config.json", **of_cache)
        if not isinstance(found, str):
            return None
        folder = Path(found).parent
    return stored_in(folder / (of_files.get("subfolder") or ""))
