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
    hints, typed = with_checks(function)
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


PLAIN = (int, float, str, bytes, type(None))
"""Default values that may be kept."""
MADE: dict[int, tuple[types.CodeType, dict[str, Any], Any, Any]] = {}
"""By the identity of its code: the code of a function within another, its annotations, a function that stands
in for it, and that one with its checks."""


def with_checks(function: Any) -> tuple[dict[str, Any], Any]:
    """The annotations of a function, and the function with its checks, which take milliseconds to make.

    Those of a function within another are made once, not whenever the other one is called.
    """
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if "<locals>" not in function.__qualname__ or not all(isinstance(value, PLAIN) for value in defaults):
        hints = resolved(function)
        return hints, checked_by_beartype(function, hints)
    code = function.__code__
    if id(code) not in MADE:
        hints, like = resolved(function), stand_in(function)
        MADE[id(code)] = code, hints, like, checked_by_beartype(like, hints)
    _, hints, like, typed = MADE[id(code)]
    if typed is like:
        return hints, function
    made = types.FunctionType(typed.__code__, typed.__globals__, typed.__name__)
    called = {name: function if value is like else value for name, value in typed.__kwdefaults__.items()}
    assert function in called.values(), "beartype keeps what it calls elsewhere"
    made.__kwdefaults__ = called
    return hints, made


def stand_in(function: Any) -> Any:
    """A function with the same code and empty cells: it keeps nothing alive that the function uses."""
    cells = tuple(types.CellType() for _ in function.__code__.co_freevars)
    like = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    like.__kwdefaults__ = function.__kwdefaults__
    like.__qualname__, like.__module__ = function.__qualname__, function.__module__
    return like


def checked_by_beartype(function: Any, hints: dict[str, Any]) -> Any:
    written, function.__annotations__ = function.__annotations__, hints
    typed = beartype(function, conf=CONF)
    function.__annotations__ = written
    return typed


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
