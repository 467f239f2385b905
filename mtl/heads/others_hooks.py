"""Hooks of others on modules that are replaced, or are not computed again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.module import _has_any_global_hook, _WrappedHook
from transformers import PreTrainedModel

from mtl.errors import InputError

_KINDS = tuple(name for name in vars(nn.Module()) if "_hook" in name)
"""The attributes in which torch keeps a module's hooks and their flags."""
_OURS = (
    "mtl.heads.position_bias", "mtl.heads.select", "mtl.heads.shared_keys",
    "transformers.utils.output_capturing",
)  # fmt: skip
"""The modules whose hooks belong to an attention: its replacement does their work itself."""


def replace_module(model: nn.Module, module: nn.Module, replacement: nn.Module) -> None:
    """Put the replacement in the module's place, with the module's hooks; their handles still remove them."""
    [path] = [name for name, child in model.named_modules() if child is module]
    for name in _KINDS:
        hooks = vars(module)[name]
        for key, hook in list(hooks.items() if isinstance(hooks, dict) else ()):
            if _is_ours(hook):
                del hooks[key]
            elif isinstance(hook, _WrappedHook) and hook.with_module:
                hooks[key] = _WrappedHook(hook.hook, replacement)
        setattr(replacement, name, hooks)
    model.set_submodule(path, replacement)


def require_replaceable(
    model: PreTrainedModel, replaced: Iterable[nn.Module], gone: Iterable[nn.Module], function: str
) -> None:
    """Raise `InputError` if a module in `gone` has hooks, or any module has a `forward` of its own."""
    paths = {module: path for path, module in model.named_modules()}
    going = list(gone)
    for module in going:
        if _has_hooks(module):
            raise InputError(
                f"{function}: {paths[module]} has hooks, and will be gone afterwards: remove them first"
            )
    for module in (*replaced, *going):
        if "forward" in vars(module):
            raise InputError(
                f"{function}: {paths[module]} is to be replaced, and somebody has set its forward function: "
                "restore that of its class first (del module.forward)"
            )


def is_watched(module: nn.Module) -> bool:
    """Whether functions of others would not run if the module were called without being computed.

    These are hooks on its parts or on all modules, and a `forward` that somebody (but accelerate) has set.
    """
    return bool(_has_any_global_hook()) or any(
        (part is not module and _has_hooks(part))
        or ("forward" in vars(part) and not hasattr(part, "_hf_hook"))
        for part in module.modules()
    )


def _has_hooks(module: nn.Module) -> bool:
    kinds = [hooks for name in _KINDS if isinstance(hooks := vars(module)[name], dict)]
    # Some values are flags of hooks.
    return any(callable(hook) and not _is_ours(hook) for hooks in kinds for hook in hooks.values())


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_OURS)
