"""Which runs' heads were measured alike, by the records in heads.parquet of how each group was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from mtl.probes.measures.groups import GROUPS
from mtl.runs.compare.alike import NAMED
from mtl.runs.compare.heads import SAME, probed_with
from mtl.tasks.in_words import counted

PROBES = "probes"
"""The group whose settings have no prefix."""
_NO_SETTING = ("run", "versions", "git", "draws", "seed", "conservation_error")
"""What is recorded beside settings: of resamples the number and the seed, which change no value."""
_OF_SENTENCES = ("corpus", "sentences")
"""Settings in which runs of one setup and the same tasks must agree; others have other sentences."""
_OF_MASKS = "masks"
_OF_ONE_MEASURE = {"steps": "integrated"}
"""Settings that change the values of one measure of a group alone, which is not made where they are 0."""


@dataclass(frozen=True)
class MeasuredRun:
    """How a run's heads were measured."""

    repeats: Hashable
    """Equal for runs of one setup and the same tasks."""
    masked: bool
    """Whether the run has masks."""
    provenance: Mapping[str, str]
    """Of heads.parquet."""

    def settings(self, group: str, measure: str) -> dict[str, str]:
        """The settings that a measure of a group was made with; empty where it was not made."""
        found = {
            key.removeprefix(f"{group}."): value
            for key, value in self.provenance.items()
            if key.startswith(f"{group}.")
        }
        if group == PROBES and SAME[0] in self.provenance:
            found = probed_with(self.provenance, masked=True)
        if any(found.get(key) == "0" for key, name in _OF_ONE_MEASURE.items() if name == measure):
            return {}
        return {
            key: value
            for key, value in found.items()
            if key not in _NO_SETTING
            and (key != _OF_MASKS or self.masked)
            and _OF_ONE_MEASURE.get(key, measure) == measure
        }


def measured_otherwise(runs: Mapping[str, MeasuredRun]) -> tuple[dict[str, set[str]], list[str]]:
    """By run the names in the column `measure` that were measured otherwise than in most runs; and notes.

    Compared are runs that have the measure: in what is set for all of them, and those that repeat each other
    in their sentences, too. Of equally frequent settings those of the first run are taken.
    """
    otherwise: dict[str, set[str]] = {}
    notes: dict[str, None] = {}
    for name, group in GROUPS.items():
        for measure in group.measures:
            settings = {run: made.settings(name, measure.name) for run, made in runs.items()}
            settings = {run: found for run, found in settings.items() if found}
            repeats: dict[Hashable, list[str]] = {}
            for run in settings:
                repeats.setdefault(runs[run].repeats, []).append(run)
            compared = [([*settings], False), *((members, True) for members in repeats.values())]
            for members, of_sentences in compared:
                unlike = _unlike({run: settings[run] for run in members}, of_sentences)
                for words, of_words in unlike.items():
                    for run in of_words:
                        otherwise.setdefault(run, set()).update(measure.names)
                    notes[_note(name, words, of_words)] = None
    return otherwise, list(notes)


def _unlike(settings: Mapping[str, Mapping[str, str]], of_sentences: bool) -> dict[str, list[str]]:
    """The runs with other settings than most, by the differences in words."""
    chosen = {
        run: {key: value for key, value in found.items() if (key in _OF_SENTENCES) == of_sentences}
        for run, found in settings.items()
    }
    unlike: dict[str, list[str]] = {}
    keys = dict.fromkeys(key for found in chosen.values() for key in found)
    for key in keys:
        having = {run: found[key] for run, found in chosen.items() if key in found}
        usual = Counter(having.values()).most_common(1)[0][0]
        for run, value in having.items():
            if value != usual:
                unlike.setdefault(f"{key}={value[:12]}, not {usual[:12]}", []).append(run)
    return unlike


def _note(group: str, words: str, runs: list[str]) -> str:
    named = ", ".join(runs[:NAMED]) + (f" and {len(runs) - NAMED} more" if len(runs) > NAMED else "")
    what = named if len(runs) == 1 else f"{counted(len(runs), 'run')} ({named})"
    measured = "heads were probed" if group == PROBES else f"{group} was measured"
    return f"{what}: {measured} with other settings ({words}): left out"
