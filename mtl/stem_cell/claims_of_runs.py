"""What a study checks and prepares for runs with copied heads: the encoder's family, and a file of claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtl.errors import InputError
from mtl.heads.family_table import FAMILIES, no_copies_because
from mtl.models.known_encoders import encoder_configuration, encoder_shape
from mtl.stem_cell.claims_file import Claims, read_claims
from mtl.stem_cell.clones_start import ClonesConfig, clones_of
from mtl.stem_cell.study_claims import claims_of, with_claims, write_claims_of
from mtl.study.extensions import Preparation

if TYPE_CHECKING:
    from mtl.study.jobs.folder import StudyFolder
    from mtl.study.jobs.job import Job


class _Claims(Preparation):
    part = "claims"
    changed = "the masks that its claims come from changed"

    def with_sources(self, runs: Sequence[Job], folder: Path) -> list[Job]:
        return with_claims(runs, folder)

    def check(self, runs: Sequence[Job]) -> None:
        """Raise `InputError` for a run whose encoder's family, or claims in a given file, allow no copies.

        The claims of the study's own masks are not known yet; see `notes`.
        """
        for run in runs:
            clones, encoder = clones_of(run.config), run.config.encoder.name
            if clones.copy_heads:
                check_family(run.name, encoder)
            if clones.copy_claimed_heads and not run.prepared_from:
                tasks = tuple(run.config.chosen())
                claims = read_claims(Path(str(clones.claims)), tasks, encoder_shape(encoder))
                if reason := _no_copies_because(claims, tasks, clones):
                    raise InputError(f"run {run.name}: {reason}")

    def fingerprints(self, run: Job, of_files: Callable[[tuple[Path, ...]], str]) -> dict[str, str]:
        given = clones_of(run.config).claims
        if given is None or run.prepared_from:
            return {}
        if not Path(given).is_file():
            raise InputError(f"run {run.name}: clones.claims={given}: no such file")
        return {self.part: of_files((Path(given),))}

    def notes(self, jobs: Mapping[str, Job], changed: set[str], study: StudyFolder) -> Iterator[str]:
        """A line for each unfinished job that will fail because its tasks contest no head, or too many.

        Claims are known if the runs that they come from have finished and are not in `changed`.
        """
        known: dict[str, Claims] = {}
        for job in jobs.values():
            sources = job.prepared_from
            if not sources or not changed.isdisjoint({job.name, *sources}) or _finished(study, [job.name]):
                continue
            if not _finished(study, sources):
                continue
            clones = clones_of(job.config)
            path = str(clones.claims)
            try:
                if path not in known:
                    known[path], _ = claims_of(job, study, jobs)
            except InputError as error:
                yield f"{job.name} will fail: {error}"
                continue
            if reason := _no_copies_because(known[path], job.config.tasks, clones):
                yield f"{job.name} will fail: {reason}"

    def prepare(self, job: Job, study: StudyFolder) -> None:
        write_claims_of(job, study)


def check_family(run: str, name: str) -> None:
    """Raise `InputError` if, by its config.json, no heads of the encoder `name` can be copied."""
    encoder = encoder_configuration(name)
    family = FAMILIES.get(str(encoder.get("model_type")))
    if family is None:
        return  # an unknown family is refused when the model is loaded: the message names its modules
    reason = no_copies_because(family, encoder)
    if reason:
        raise InputError(
            f"run {run}: no heads can be copied in {name} ({encoder['model_type']}): {reason}; leave the "
            "block out, or use another encoder"
        )


def _no_copies_because(claims: Claims, tasks: Sequence[str], clones: ClonesConfig) -> str:
    """Why these copies cannot be made in the uncut encoder; empty if they can."""
    from mtl.stem_cell.clones import planned_copies  # it loads torch, and few studies come here

    layers, heads = claims.shape
    try:
        planned_copies(claims, [range(heads)] * layers, tasks, clones)
    except InputError as error:
        return str(error)
    return ""


def _finished(study: StudyFolder, names: Sequence[str]) -> bool:
    return all(study.progress(name).state == "finished" for name in names)


CLAIMS = _Claims()
