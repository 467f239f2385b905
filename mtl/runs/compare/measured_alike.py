"""Which runs' heads were measured alike, by what heads.parquet records about each group of measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from mtl.probes.measures.groups import GROUPS
from mtl.runs.compare.heads import SAME, probed_with
from mtl.runs.compare.keys import listed
from mtl.tasks.in_words import counted

PROBES = "probes"
"""The group whose settings are recorded without a prefix."""
_NO_SETTING = ("run", "versions", "git", "draws", "seed", "conservation_error")
"""What is recorded besides settings; the number and the seed of resamples change no value."""
_OF_SENTENCES = ("corpus", "sentences")
"""Settings in which only runs of one setup and the same tasks must agree; others have other sentences."""
_OF_MASKS = "masks"
_OF_ONE_MEASURE = {"steps": "integrated"}
"""Settings that change only one measure of their group, which is not made if they are 0."""


@dataclass(frozen=True)
class MeasuredRun:
    """How a run's heads were measured."""

    repeats: Hashable
    """Equal for runs of one setup and the same tasks."""
    masked: bool
    """Whether the run has masks."""
    provenance: Mapping[str, str]
    """The provenance in heads.parquet."""

    def settings(self, group: str, measure: str) -> dict[str, str]:
        """The settings that a measure of a group was made with; empty if it was not made."""
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
    """By run, the names in the column `measure` that were measured otherwise than in most runs; and notes.

    Runs that have a measure are compared in its settings; those of one setup and the same tasks also in their
    sentences. Of equally frequent settings, those of the first run are usual.
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
    """The runs with other settings than most, by the difference in words."""
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
    what = runs[0] if len(runs) == 1 else f"{counted(len(runs), 'run')} ({listed(runs)})"
    measured = "heads were probed" if group == PROBES else f"{group} was measured"
    return f"{what}: {measured} with other settings ({words}): left out"
