"""The scale of every head for every task, against products written out head by head."""

import itertools

import pytest
import torch

from mtl.errors import InputError
from mtl.heads.gates import FixedGates, HeadScales, closed_heads, open_heads

TASKS = ("pos", "dep")
THERE = ((0, 2), (0, 1, 2))
GATES = {"shared": torch.tensor([[[0.5, 1.0, 0.0], [1.0, 0.25, 1.0]]])}
GATES["per_task"] = torch.cat([GATES["shared"], 1 - GATES["shared"]])


def scales_of(gates: str | None) -> HeadScales:
    names = {"shared": ("shared",), "per_task": TASKS}
    fixed = None if gates is None else FixedGates(GATES[gates], names[gates])
    return HeadScales(TASKS, THERE, 3, fixed)


def by_hand(task: str, gates: str | None) -> torch.Tensor:
    scale = torch.zeros(2, 3)
    for site, head in itertools.product(range(2), range(3)):
        if head in THERE[site]:
            mask = TASKS.index(task) if gates == "per_task" else 0
            scale[site, head] = 1 if gates is None else GATES[gates][mask, site, head]
    return scale


@pytest.mark.parametrize("gates", [None, "shared", "per_task"])
def test_all_methods_agree_with_the_product(gates):
    scales = scales_of(gates)
    there = torch.tensor([[head in heads for head in range(3)] for heads in THERE])
    in_pass = scales.in_pass()
    masks = {task: mask for mask in scales.masks(TASKS) for task in mask.tasks}
    for place, task in enumerate(TASKS):
        expected = by_hand(task, gates)
        assert torch.equal(scales.of_task(task), expected)
        assert torch.equal(scales.of_task(task, gated=False), by_hand(task, None))
        applied = torch.ones(2, 3) if in_pass is None else in_pass
        assert torch.equal((applied if applied.dim() == 2 else applied[place]) * there, expected)
        scale = masks[task].head_scale
        assert torch.equal(there.float() if scale is None else scale, expected)
        opened, closed = open_heads(expected), closed_heads(expected)
        assert opened == [(int(site), int(head)) for site, head in expected.nonzero()]
        assert len(opened) + sum(map(len, closed.values())) == 6
        assert all(expected[site, head] == 0 for site, heads in closed.items() for head in heads)


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        (None, "the run has no masks"),
        ("per_task", "every task has a mask of its own: choose one with --task"),
    ],
)
def test_one_mask_for_tasks_that_have_none_is_one_line(gates, message):
    with pytest.raises(InputError, match=message):
        scales_of(gates).of_one_mask(TASKS)


def test_a_shared_mask_serves_tasks_that_were_not_trained():
    [mask] = scales_of("shared").masks(("ner", "pos"))
    assert mask.tasks == ("ner", "pos")
    assert [mask.name for mask in scales_of("per_task").masks(("ner", "dep"))] == ["dep"]
    [mask] = scales_of("per_task").masks(("ner",), gated=False)
    assert mask.head_scale is None
