"""Competition with several kinds of attention."""

from __future__ import annotations

from mtl.probes.report.head_maps import heads_data
from mtl.probes.statistics.masks import final_masks
from mtl.probes.stem_cell.competition import compete
from tests.probes.test_kinds_of_attention import HEADS, SITES, gates, heads  # noqa: F401
from tests.probes.worlds import with_kinds


def test_competition_compares_heads_within_layers_of_one_kind(gates, heads):  # noqa: F811
    flat = compete(final_masks(gates)[0], heads)
    result = compete(final_masks(with_kinds(gates))[0], with_kinds(heads))
    names = ["attention", "layer"]
    assert result.heads.drop(names).equals(flat.heads.drop(names))
    assert result.heads.select(*names, "head").rows() == [
        (*site, head) for site in SITES for head in range(HEADS)
    ]
    assert result.head_tests.equals(flat.head_tests)
    assert result.labels.equals(flat.labels)
    assert result.task_losses.equals(flat.task_losses)
    assert result.verdict == flat.verdict


def test_mean_skills_in_the_reports_data_keep_kinds_apart(gates, heads):  # noqa: F811
    def means(gates, heads):
        masks, _ = final_masks(gates)
        table = compete(masks, heads).heads
        return heads_data(masks.sites, HEADS, {}, None, None, table, None)["means"]

    assert means(with_kinds(gates), with_kinds(heads)) == means(gates, heads)
    assert set(means(gates, heads)) == {"stl", "joint", "loss"}
