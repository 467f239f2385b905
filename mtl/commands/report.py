"""`mtl report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from mtl.probes.appearance import Appearance, appearing

if TYPE_CHECKING:
    from mtl.probes.report.sweep import SweepEvidence


def report(
    folder: Path,
    out: Path | None = None,
    split: Literal["dev", "test"] | None = None,
    claims: str | None = None,
    palette: str = "",
    colours: dict[str, str] | None = None,
    order: tuple[str, ...] = (),
    json_out: Path | None = None,
) -> None:
    """Write one self-contained HTML page about all runs and probes in a folder.

    Args:
        folder: Folder that holds, directly or in its runs/, folders of runs and of probed encoders.
        out: The page; default: FOLDER/report.html.
        split: Split of the scores; default: that of the study in the folder, or test.
        claims: The setup, by its name in the report, whose masks are claims; default: in a study, the first
            block of its file that has masks, otherwise the single-task setup that has masks of the most tasks
            and seeds.
        palette: A colour list of matplotlib, for instance Dark2; default, also for the next two options: as
            in the study in the folder.
        colours: Colours by name of a task, setup or run: --colours='{STL: black, MTL-3: "#0072B2"}'.
        order: Tasks in the order in which they are shown, for instance --order=[dep,pos].
        json_out: JSON file for the answers on the first screen and their estimates.
    """
    from mtl.workers.collector import without_collector

    with without_collector():
        appearance = Appearance(palette, colours or {}, order)
        _write(folder, out or folder / "report.html", split, claims, appearance, json_out)


def _write(
    folder: Path,
    out: Path,
    split: Literal["dev", "test"] | None,
    claims: str | None,
    chosen: Appearance,
    json_out: Path | None,
) -> None:
    from mtl.config.schema import TrainConfig
    from mtl.errors import as_input_error
    from mtl.files import check_file_place, write_json, write_text
    from mtl.probes.figures.palette import check_appearance
    from mtl.probes.report.claims import claim_sets
    from mtl.probes.report.overlaps import masks_by_setup
    from mtl.probes.report.report import report as page
    from mtl.runs.evidence import page_parts
    from mtl.runs.report.gather import gather
    from mtl.study.claiming_setup import (
        chosen_claims,
        fixed_claims,
        only_claiming_seeds,
        stored_study,
    )
    from mtl.study.jobs.folder import StudyFolder

    for file in filter(None, (out, json_out)):
        check_file_place(file)
    with as_input_error():
        check_appearance(chosen)
    study = stored_study(folder)
    train = TrainConfig() if study is None else study.train
    scores = train.main_scores()
    evidence = gather(
        folder,
        split or ("test" if study is None else study.split),
        scores,
        _sweep(folder),
        () if study is None else StudyFolder(folder).not_to_probe(),
    )
    deciding = None if study is None else fixed_claims(study, folder, evidence)
    if claims is not None:
        deciding = chosen_claims(
            claims, evidence, claim_sets(masks_by_setup(evidence)[0], evidence.setups), deciding
        )
    if study is not None:
        evidence = only_claiming_seeds(study, evidence, deciding)
    if chosen == Appearance() and study is not None:
        chosen = study.appearance
    with appearing(chosen) as shown:
        drawn = page(evidence, deciding, page_parts())
    write_text(out, drawn.html)
    console = Console(markup=False, emoji=False)
    if json_out is not None:
        write_json(json_out, drawn.record())
    for line in (*drawn.lines(), *(f"note: {fault}" for fault in shown.faults("the page"))):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if json_out is not None:
        console.print(f"wrote {json_out}", highlight=False, soft_wrap=True)
    console.print(f"wrote {out} ({len(drawn.html.encode()) / 1e6:.2f} MB)", highlight=False, soft_wrap=True)


def _sweep(folder: Path) -> SweepEvidence | None:
    """The sweep in a folder, if there is one; only then is Optuna loaded."""
    if not any((folder / name).is_file() for name in ("sweep.json", "sweep.db")):
        return None
    from mtl.study.sweep.report import sweep_evidence

    return sweep_evidence(folder)
