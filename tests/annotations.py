"""Annotated types are checked as by `jaxtyping.jaxtyped`, in a fraction of its time."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

CONF = BeartypeConf(violation_type=jaxtyping.TypeCheckError, is_color=False)
original = jaxtyping.jaxtyped


def jaxtyped(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The decorator that jaxtyping's import hook puts on functions and classes.

    `jaxtyping.jaxtyped` binds the arguments of each call for its messages, and checks them twice.
    """
    return functools.partial(checked, typechecker)


def checked(typechecker: Callable[[Any], Any], thing: Any) -> Any:
    again = functools.partial(checked, typechecker)
    if isinstance(thing, type):
        if is_dataclass(thing) and not hasattr(thing.__init__, "is_checked"):
            thing.__init__ = again(thing.__init__)
        return thing
    if isinstance(thing, classmethod | staticmethod):
        return type(thing)(again(thing.__func__))
    if isinstance(thing, property):
        return property(*(each and again(each) for each in (thing.fget, thing.fset, thing.fdel)))
    if not isinstance(thing, types.FunctionType) or is_suspended(thing):
        return original(thing, typechecker=typechecker)
    return wrapped(thing)


def is_suspended(function: Any) -> bool:
    """Whether a call returns before the body has run."""
    return inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)


def wrapped(function: Any) -> Any:
    hints = resolved(function)
    written, function.__annotations__ = function.__annotations__, hints
    typed = beartype(function, conf=CONF)
    function.__annotations__ = written
    if any(has_axes(hint) for hint in hints.values()):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if jaxtyping.config.jaxtyping_disable:
                return function(*args, **kwargs)
            with original("context"):
                return typed(*args, **kwargs)
    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return (function if jaxtyping.config.jaxtyping_disable else typed)(*args, **kwargs)

    vars(wrapper)["is_checked"] = True
    return wrapper


def resolved(function: Any) -> dict[str, Any]:
    """The annotations as types; those that cannot be told at run time are left out, as by jaxtyping."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        found = [resolved_one(function, item) for item in function.__annotations__.items()]
        return dict(itertools.chain.from_iterable(found))


def resolved_one(function: Any, item: tuple[str, Any]) -> list[tuple[str, Any]]:
    def holder() -> None: ...

    holder.__annotations__ = dict([item])
    try:
        return list(get_type_hints(holder, function.__globals__, include_extras=True).items())
    except Exception:
        return []


def has_axes(hint: Any) -> bool:
    """Whether a type names axes somewhere, whose sizes hold for the whole call."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(has_axes(part) for part in get_args(hint))
