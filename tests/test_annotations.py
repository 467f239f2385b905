"""Annotations are checked in the tests' packages: whatever jaxtyping refuses is refused, and nothing else."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import beartype
import jaxtyping
import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tests import annotations

if TYPE_CHECKING:
    from decimal import Decimal

ONE, TWO, THREE = (torch.ones(size) for size in (1, 2, 3))


@pytest.fixture(params=[annotations.original, annotations.jaxtyped], ids=["jaxtyping", "ours"])
def check(request) -> Callable[[Any], Any]:
    return request.param(typechecker=beartype.beartype)


wrong: Any = 3


def number(value: int, *, more: Mapping[str, int] | None = None) -> str:
    return str(value) if value >= 0 else wrong


def same(one: Float[Tensor, " n"], two: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return torch.ones(3)


def inside(tensors: list[Float[Tensor, " n"]]) -> dict[str, Float[Tensor, " n"]]:
    return {"three": torch.ones(3)}


def unknown(value: Decimal, other: int) -> None: ...


def numbers(value: int) -> Iterator[int]:
    yield value


@dataclass
class Pair:
    one: Float[Tensor, " n"]
    two: Float[Tensor, " n"]


class Other(Pair):
    pass


def methods(check: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """A method of each kind that takes or returns an integer."""

    def plain(self: Any, value: int) -> None: ...

    def given(self: Any) -> int:
        return self.value

    names = {"value": "", "plain": check(plain), "of_class": check(classmethod(plain))}
    names |= {"static": check(staticmethod(number)), "given": check(property(given))}
    kind = check(type("Kind", (), names))
    instance = kind()

    def read(value: Any) -> int:
        instance.value = value
        return instance.given

    return {"plain": instance.plain, "of_class": kind.of_class, "static": instance.static, "given": read}


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (number, {"value": 1}, {"value": "1"}),
        (number, {"value": 1, "more": {"one": 1}}, {"value": 1, "more": {"one": "1"}}),
        (number, {"value": 1}, {"value": -1}),
        (same, {"one": THREE, "two": THREE}, {"one": THREE, "two": TWO}),
        (same, {"one": THREE, "two": THREE}, {"one": TWO, "two": TWO}),
        (same, {"one": THREE, "two": THREE}, {"one": THREE, "two": THREE.int()}),
        (inside, {"tensors": [THREE]}, {"tensors": [TWO]}),
        (unknown, {"value": 1, "other": 1}, {"value": 1, "other": "1"}),
        (numbers, {"value": 1}, {"value": "1"}),
        (Pair, {"one": TWO, "two": TWO}, {"one": TWO, "two": ONE}),
        (Other, {"one": TWO, "two": TWO}, {"one": TWO, "two": ONE}),
    ],
)
def test_wrong_values_and_sizes_are_refused(check, function, good, bad) -> None:
    checked = check(type(function.__name__, (function,), {}) if isinstance(function, type) else function)
    checked(**good)
    with pytest.raises(TypeCheckError):
        checked(**bad)


@pytest.mark.parametrize("name", ["plain", "of_class", "static", "given"])
def test_methods_are_checked(check, name: str) -> None:
    method = methods(check)[name]
    method(1)
    with pytest.raises(TypeCheckError):
        method("1")


def test_sizes_hold_for_one_call(check) -> None:
    @check
    def outer(one: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        checked(TWO)
        return one

    @check
    def checked(two: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return two

    assert outer(THREE) is THREE
    assert outer(ONE) is ONE


@pytest.mark.usefixtures("as_installed")
def test_nothing_is_checked_as_installed(check) -> None:
    assert check(number)(-1) == wrong


def test_functions_stay_what_they_are(check) -> None:
    checked = check(number)
    assert (checked.__name__, checked.__doc__) == (number.__name__, number.__doc__)
    assert (
        checked.__annotations__
        == number.__annotations__
        == {
            "value": "int",
            "more": "Mapping[str, int] | None",
            "return": "str",
        }
    )


def test_the_packages_are_checked_by_ours() -> None:
    from mtl.probes.statistics import masks

    assert jaxtyping.jaxtyped is annotations.jaxtyped
    assert any(hasattr(value, "is_checked") for value in vars(masks).values())


def test_functions_within_another_have_their_own_variables_and_the_same_checks():
    def outer(held: list[int]) -> Callable[..., Any]:
        def inner(value: int, more: int = 0) -> int:
            return wrong if value < 0 else value + more + held[0]

        return annotations.jaxtyped(typechecker=beartype.beartype)(inner)

    class Held(list[int]):
        pass

    first = Held([1])
    gone, functions = weakref.ref(first), [outer(first), outer(Held([10]))]
    assert [function(1, more=1) for function in functions] == [3, 12]
    for function in functions:
        for given in (("1",), (1, "1")):
            with pytest.raises(TypeCheckError, match="inner"):
                function(*given)
    del first, function, functions
    gc.collect()
    assert gone() is None
