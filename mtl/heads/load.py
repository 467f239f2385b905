"""Load models with transformers' own loader, whether their heads were cut, shared or not changed.

A folder may come from a stranger. Its config.json decides how much memory a model takes, and how long making
it takes; its weights are what was downloaded. Sizes are read before a configuration or a model is made of
them, and those that do not fit the weights are refused.
"""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
import struct
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mtl.errors import InputError
from mtl.features import added
from mtl.heads.arguments import dtype_of, path_or_hub_name, refuse_revision
from mtl.heads.attentions import attentions, needs_rebuild, parts_of, records_of_heads, site_places
from mtl.heads.families import family_of, row_given
from mtl.heads.family_table import FAMILIES, Family
from mtl.heads.given_models import require_heads
from mtl.heads.prune import cut_sites
from mtl.tasks.in_words import counted, first_line

MASKS = "trained_with_head_masks"
"""A key of config.json, and the name of a tensor beside the weights: the masks that a model was trained with.

No model has a parameter of that name, so plain transformers reports it when it loads the weights.
"""
_NOTE = (
    "The model was trained with masks over its attention heads, which are not in its weights: without them "
    "it computes something else. mtl.JointModel.from_pretrained loads it with its masks; mtl prune RUN "
    "--keep_shape=true --out=DIR writes weights with the masks in them, for transformers and other tools."
)


LOAD_ERRORS = (
    OSError, ValueError, KeyError, RuntimeError, SafetensorError, TypeError, AttributeError, IndexError,
    ArithmeticError, AssertionError, ImportError, StrictDataclassError, pickle.UnpicklingError, EOFError,
)  # fmt: skip
"""What transformers raises on a model that is missing or damaged, or whose config.json was changed."""
_OWN_OPTIONS = ("config", "state_dict", "output_loading_info", "ignore_mismatched_sizes", "key_mapping")
"""Options of `from_pretrained` that `load_pruned` sets itself."""


@contextmanager
def load_errors(what: str, advice: str = "") -> Iterator[None]:
    """Turn what transformers raises on a model that is missing or damaged into an `InputError`.

    An `InputError` on its configuration is raised again with the model's name.
    """
    try:
        yield
    except (InputError, *LOAD_ERRORS) as error:
        # torch's own words recommend to load what may hold code.
        is_pickle = isinstance(error, pickle.UnpicklingError | EOFError)
        reason = "its weights are damaged, or hold more than tensors" if is_pickle else first_line(error)
        raise InputError(f"cannot load {_on_one_line(what)} ({_on_one_line(reason)}){advice}") from error


def _on_one_line(text: str, most: int = 200) -> str:
    """The text with unprintable characters escaped; only its beginning if it is longer than `most`."""
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return line if len(line) <= most else f"{line[:most]}…"


class Loaded(NamedTuple):
    """A model in evaluation mode, and what transformers reports about its weights."""

    model: PreTrainedModel
    missing: frozenset[str]
    unexpected: frozenset[str]
    """Weights in the file that the model does not have."""
    other_shapes: tuple[str, ...]
    """Weights that have another shape than config.json gives them, in words."""


def load_pruned(
    name: Path | str,
    dtype: torch.dtype | str = "auto",
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    family: Family | str | None = None,
    **options: Any,
) -> PreTrainedModel:
    """The model that `save_pretrained` wrote after `prune_heads` or another change to its heads.

    It has the class that was saved, and is in evaluation mode. Models with all of their heads load, too.

    Args:
        name: its folder, or its name on the hub.
        dtype: type of the weights; `auto`: as they were saved. As in transformers, buffers that are computed
            from the configuration stay in float32 (frequencies of rotary positions).
        revision: a branch, tag or commit of the repository on the hub.
        cache_dir: where downloads are kept; `None`: the hub's cache.
        token: access token of the hub; `None`: the token stored by the hub's login.
        local_files_only: use only files in the cache.
        family: as in `prune_heads`.
        **options: further arguments of transformers' `from_pretrained`, such as `variant`, `subfolder` or
            `attn_implementation`.

    Raises:
        InputError: the model cannot be loaded, its class is unknown, or its weights do not fit config.json.
    """
    name, family = path_or_hub_name(name, "name"), row_given(family)
    refuse_revision(name, revision)
    dtype = dtype_of(dtype)
    for key in _OWN_OPTIONS:
        if key in options:
            raise InputError(f"load_pruned sets {key} itself: leave it out")
    if "torch_dtype" in options:
        raise InputError("load_pruned calls torch_dtype dtype, as transformers 5 does: use dtype=")
    of_files = {
        "revision": revision or "main", "cache_dir": cache_dir, "token": token,
        "local_files_only": local_files_only,
    }  # fmt: skip
    if "subfolder" in options:
        of_files["subfolder"] = options.pop("subfolder")
    with load_errors(str(name)):
        config = configuration(str(name), **of_files)
        kind = _class_named((config.architectures or ["none stated"])[0], config)
        model, missing, unexpected, other_shapes = load_model(
            name, kind, config, family, dtype=dtype, **of_files, **options
        )
    if _lacks_only_pooler(model, missing):
        model.pooler, missing = None, frozenset()
    misfits = [*other_shapes, *sorted(missing), *sorted(unexpected)]
    if misfits:
        raise InputError(
            f"the weights in {name} do not fit its config.json: missing {sorted(missing)[:3]}, unexpected "
            f"{sorted(unexpected)[:3]}, of another shape {list(other_shapes[:3])}"
        )
    return model


def load_model(
    name: Path | str,
    kind: type[PreTrainedModel],
    config: PretrainedConfig,
    family: Family | str | None = None,
    /,
    **options: Any,
) -> Loaded:
    """A model of a class by `from_pretrained`, with the heads that its configuration records.

    `config.pruned_heads` records which heads are cut out, `config.keys_of_heads` which share keys and values;
    features have further records (`records_of_heads`). transformers itself handles names of weights, shards,
    ties, types and downloads: it is given a class whose models have these heads from the start, without
    memory for any other.

    Args:
        name: a folder or a name on the hub.
        kind: the class, which may have another head on it than the one that was saved.
        config: its configuration; it is not changed.
        family: its row, if the table has none (`Family`), or the name of a row that fits.
        options: of `from_pretrained`.

    Raises what `from_pretrained` raises.
    """
    options = {"variant": _only_variant(Path(name)), "key_mapping": _prefixes(kind, config), **options}
    build, indices = _with_heads_of(kind, config, family, partial(weights_of, name, **options))
    if needs_rebuild(config):
        config = _uncut(config)
    model, report = build.from_pretrained(
        str(name), config=config, output_loading_info=True, ignore_mismatched_sizes=True,
        trust_remote_code=False, **options,
    )  # fmt: skip
    model.__class__ = kind
    if hasattr(model.config, MASKS):
        delattr(model.config, MASKS)
    for path, index in indices.items():
        module, _, buffer = path.rpartition(".")
        model.get_submodule(module).register_buffer(buffer, index, persistent=False)
    for module in model.modules():
        for name in getattr(module, "not_learned", ()):
            module.get_parameter(name).requires_grad_(False)
    shapes = sorted(
        f"{name} is {tuple(has)}, not {tuple(wanted)}" for name, has, wanted in report["mismatched_keys"]
    )
    unexpected = frozenset(report["unexpected_keys"]) - {MASKS}
    return Loaded(model, frozenset(report["missing_keys"]), unexpected, tuple(shapes))


def save_model(
    model: PreTrainedModel, folder: Path, masks: Float[Tensor, "mask site head"] | None = None
) -> None:
    """Write a model with its own names of weights, not those of the checkpoint that it was loaded from.

    `masks` are those that it was trained with; the weights do not contain them. They are written beside the
    weights. Plain transformers loads the model without them and reports a weight of this name as unexpected;
    config.json says what that means.
    """
    weights = None
    try:
        if masks is not None:
            weights = model.state_dict() | {MASKS: masks.detach().float().cpu().contiguous()}
            setattr(model.config, MASKS, _NOTE)
        model.save_pretrained(folder, state_dict=weights, save_original_format=False)
    finally:
        if masks is not None:
            delattr(model.config, MASKS)


def class_for(config: PretrainedConfig, classes: Any) -> type[PreTrainedModel]:
    """The class of an auto class's mapping for a configuration; raises `ValueError` if it has none.

    The mapping has no narrower type: checking it would read an item, which imports all configurations.
    """
    found = classes.get(type(config), None)
    if found is None:
        raise ValueError(f"models of type {config.model_type!r} are of another kind")
    return found[0] if isinstance(found, tuple) else found


def _class_named(name: str, config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class of transformers, or one that was registered for the configuration (`AutoModel.register`).

    Parts of models (`T5Stack`) are found only in the module of the registered classes.
    """
    mappings = (auto for key, auto in vars(modeling_auto).items() if key.endswith("_MAPPING"))
    registered = [found for mapping in mappings if (found := mapping.get(type(config), None))]
    parts = (getattr(sys.modules.get(getattr(kind, "__module__", "")), name, None) for kind in registered)
    for kind in (getattr(transformers, name, None), *registered, *parts):
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.__name__ == name:
            return kind
    raise InputError(
        f"config.json names no known class under 'architectures': {name}; register your own with "
        "AutoModel.register"
    )


def _with_heads_of(
    kind: type[PreTrainedModel],
    config: PretrainedConfig,
    family: Family | str | None,
    weights: Callable[[], Stored | None],
) -> tuple[type[PreTrainedModel], dict[str, Tensor]]:
    """A class of models that have the recorded heads when they are made, and their indices by path.

    A model that is much larger than its weights is refused while it is on `meta`, without memory.
    The indices are buffers that are not saved, which `from_pretrained` would leave empty.
    """
    row = row_given(family) or FAMILIES.get(config.model_type)
    # Parts that are stacks of the model's row have its sites.
    of_row = {stack.config for stack in row.stacks if stack.config} if row else set()
    records = {
        key: records_of_heads(part, None if key else row)
        for key, part in parts_of(config).items()
        if key not in of_row
    }
    indices: dict[str, Tensor] = {}

    def begin(model: PreTrainedModel, config: PretrainedConfig, *given: Any, **named: Any) -> None:
        kind.__init__(model, config, *given, **named)
        parts = parts_of(model.config)
        for key, heads in records.items():
            if any(heads.values()):
                models = (part for part in model.modules() if isinstance(part, PreTrainedModel))
                part = next(part for part in models if part.config is parts[key])
                _put_heads(part, family_of(part, None if key else family), heads)
        require_fitting(model, weights(), "config.json", config.to_dict())
        # Of a model on `meta`, only these buffers have numbers.
        indices.update((path, index) for path, index in model.named_buffers() if not index.is_meta)

    names = {"__init__": begin, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names), indices


def _uncut(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration without its records of heads, and without those of its parts."""
    plain = copy.deepcopy(config)
    for part in parts_of(plain).values():
        for name in records_of_heads(part):
            if hasattr(part, name):
                setattr(part, name, {})
    return plain


def _put_heads(model: PreTrainedModel, family: Family, records: Mapping[str, dict[int, Any]]) -> None:
    """Give an uncut model the recorded heads (`records_of_heads`); their weights are to be loaded."""
    cuts, keys = records["pruned_heads"], records["keys_of_heads"]
    places = list(site_places(model.config, family, type(model).__name__))
    sites, there = [place.site for place in places], [range(place.heads) for place in places]
    with _from_record("pruned_heads"):
        require_heads(cuts, sites, there, "cut")
        own = [place.site for place in attentions(model, family)]
        if own != sites[: len(own)]:
            raise InputError(
                f"it counts layers that {type(model).__name__} does not have: save and load the whole model"
            )
    for name, row in added(lambda feature: feature.head_records).items():
        with _from_record(name):
            require_heads(dict.fromkeys(records[name], ()), sites, there, "shared")
            resolve_name(row.put)(model, family, records[name])
    with _from_record("keys_of_heads" if keys else "pruned_heads"):
        require_heads(dict.fromkeys(keys, ()), sites, there, "grouped")
        cut_sites(model, family, {site: set(heads) for site, heads in cuts.items()}, None, keys)


@contextmanager
def _from_record(name: str) -> Iterator[None]:
    """Name the record in errors about heads or layers that the model does not have."""
    try:
        yield
    except (InputError, *LOAD_ERRORS) as error:
        raise InputError(f"{name} in its config.json does not fit the model: {first_line(error)}") from error


def _lacks_only_pooler(model: PreTrainedModel, missing: Collection[str]) -> bool:
    """Whether the weights lack nothing but a pooler, which is optional in the model's class."""
    choosable = "add_pooling_layer" in inspect.signature(type(model).__init__).parameters
    return choosable and bool(missing) and all(name.startswith("pooler.") for name in missing)


def _prefixes(kind: type[PreTrainedModel], config: PretrainedConfig) -> dict[str, str] | None:
    """What turns the names of weights of the class that was saved into those of `kind`; `None`: nothing.

    transformers knows one name for the model inside, and in some families a class for one purpose has another
    (Llama's for question answering).
    """
    saved = getattr(transformers, (config.architectures or ["none stated"])[0], kind)
    before, after = saved.base_model_prefix, kind.base_model_prefix
    return {rf"^{re.escape(before)}\.": f"{after}."} if before != after and before and after else None


def _only_variant(folder: Path) -> str | None:
    """The variant that all of a folder's weights are saved as (`model.fp16.safetensors`), if there is one."""
    names = [path.name for path in folder.glob("model*.safetensors")]
    found = [re.fullmatch(r"model(?:\.([^.]+?))?(?:-\d{5}-of-\d{5})?\.safetensors", name) for name in names]
    variants = {match[1] for match in found if match}
    return variants.pop() if len(variants) == 1 else None


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
    content, _ = PretrainedConfig.get_config_dict(name, **of_files)
    kind = content.get("model_type")
    if "auto_map" in content and kind not in CONFIG_MAPPING:
        raise InputError(f"models of type {str(kind)[:50]!r} need code of their own folder, which is not run")
    require_possible(content, weights_of(name, **of_files), name)
    return AutoConfig.from_pretrained(name, trust_remote_code=False, **of_files)


def tokenizer(name: str | Path, **of_files: Any) -> Any:
    """A checkpoint's tokenizer; its folder's code is not run."""
    return AutoTokenizer.from_pretrained(name, trust_remote_code=False, **of_files)


def weights_of(name: str | Path, **of_files: Any) -> Stored | None:
    """What the weights of a checkpoint hold; `None` if they are neither in a folder nor in the hub's cache.

    The arguments are those of `configuration`.
    """
    folder = Path(name)
    if not folder.is_dir():
        of_cache = {key: of_files.get(key) for key in ("cache_dir", "revision")}
        found = try_to_load_from_cache(str(name), "config.json", **of_cache)
        if not isinstance(found, str):
            return None
        folder = Path(found).parent
    return stored_in(folder / (of_files.get("subfolder") or ""))
