"""Words of the generated corpus: the arguments they take and the prepositional phrases they attract."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import Literal

from mtl.config.schema import Split

Kind = Literal["person", "org", "thing", "place"]


@dataclass(frozen=True, slots=True)
class Noun:
    """A common noun; `group` and `fixed` decide where prepositional phrases near it attach."""

    singular: str
    plural: str
    kind: Kind
    group: int = 0
    """'with NOUN' modifies a verb of the same group; beside other verbs, it modifies their object."""
    fixed: bool = False
    """A following 'near PLACE' modifies this noun; otherwise it modifies the verb."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its forms, its pattern (which arguments it takes) and the kinds of its subjects and objects."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str
    pattern: str
    group: int
    subjects: frozenset[Kind]
    objects: frozenset[Kind]

    @property
    def sense(self) -> str:
        return f"{self.base}.01"


_LETTERS: dict[str, Kind] = {"p": "person", "o": "org", "t": "thing", "l": "place"}

# singular plural kind group(with) fixed(near)
_NOUNS = """
man men p 0 - | woman women p 0 - | student students p 0 - | doctor doctors p 0 - | farmer farmers p 0 -
singer singers p 0 - | guard guards p 0 - | cook cooks p 0 - | judge judges p 0 -
neighbour neighbours p 0 -
company companies o 0 - | bank banks o 0 - | team teams o 0 - | agency agencies o 0 - | club clubs o 0 -
dog dogs t 0 - | boat boats t 1 - | shop shops t 0 f | wall walls t 1 f | tree trees t 0 f
house houses t 0 f | bridge bridges t 1 f | tower towers t 0 f
saw saws t 1 - | watch watches t 0 - | light lights t 1 - | paint paints t 0 - | drawing drawings t 1 -
telescope telescopes t 0 - | hammer hammers t 1 - | basket baskets t 0 - | rope ropes t 1 -
brush brushes t 0 -
lamp lamps t 1 - | garden gardens t 1 f | fence fences t 0 f | letter letters t 1 - | hat hats t 0 -
park parks l 0 - | city cities l 0 - | village villages l 0 - | station stations l 0 -
river rivers l 0 -
walk walks t 1 - | run runs t 0 - | help helps t 1 - | cut cuts t 0 - | study studies t 1 -
"""

# base third past participle gerund pattern group subjects objects
_VERBS = """
see sees saw seen seeing trans 0 p pt | watch watches watched watched watching trans 0 p pt
paint paints painted painted painting trans 0 p t | clean cleans cleaned cleaned cleaning trans 0 p t
follow follows followed followed following trans 0 p pt | break breaks broke broken breaking trans 0 p t
find finds found found finding trans 1 po pt | carry carries carried carried carrying trans 1 p t
draw draws drew drawn drawing trans 1 p pt | push pushes pushed pushed pushing trans 1 p pt
help helps helped helped helping trans 1 po po | cut cuts cut cut cutting trans 1 p t
study studies studied studied studying trans 1 p t | light lights lit lit lighting trans 0 p t
acquire acquires acquired acquired acquiring trans 0 o o | sue sues sued sued suing trans 1 o o
hire hires hired hired hiring trans 1 o p | judge judges judged judged judging trans 0 p p
guard guards guarded guarded guarding trans 1 p t | cook cooks cooked cooked cooking agent 0 p -
sleep sleeps slept slept sleeping agent 0 p - | laugh laughs laughed laughed laughing agent 0 p -
run runs ran run running agent 1 p - | walk walks walked walked walking agent 1 p -
wait waits waited waited waiting agent 0 p - | dance dances danced danced dancing agent 1 p -
vanish vanishes vanished vanished vanishing theme 0 pt - | fall falls fell fallen falling theme 1 pt -
collapse collapses collapsed collapsed collapsing theme 0 ot -
arrive arrives arrived arrived arriving theme 1 p -
shrink shrinks shrank shrunk shrinking theme 0 ot - | grow grows grew grown growing theme 1 ot -
give gives gave given giving give 0 p p | send sends sent sent sending give 1 po p
show shows showed shown showing give 1 p p | lend lends lent lent lending give 0 po p
say says said said saying claim 0 po - | think thinks thought thought thinking claim 0 p -
believe believes believed believed believing claim 1 p -
announce announces announced announced announcing claim 0 o -
know knows knew known knowing claim 1 p - | want wants wanted wanted wanting want 0 p -
hope hopes hoped hoped hoping want 1 p - | plan plans planned planned planning want 0 p -
persuade persuades persuaded persuaded persuading urge 0 p p
order orders ordered ordered ordering urge 1 p p
ask asks asked asked asking urge 0 p p | promise promises promised promised promising vow 0 p p
pick picks picked picked picking up 1 p t | hold holds held held holding up 0 p t
put puts put put putting up 1 p t
"""

ADJECTIVES = (
    "old", "small", "red", "strange", "heavy", "quiet", "famous", "present", "light", "open", "clean",
    "round", "wooden",
)  # fmt: skip
MANNERS = ("quickly", "slowly", "quietly", "carefully", "badly", "well")
FREQUENCIES = ("often", "rarely", "never", "always")
DAYS = ("Monday", "Tuesday", "Friday", "Sunday")
_AMBIGUOUS = (
    "Jordan", "Lincoln", "Houston", "Victoria", "Sydney", "Florence", "Chelsea", "Austin", "Carolina",
    "Madison",
)  # fmt: skip


def _rows(text: str) -> list[list[str]]:
    return [row.split() for line in text.strip().splitlines() for row in line.split("|")]


def _kinds(letters: str) -> frozenset[Kind]:
    return frozenset(_LETTERS[letter] for letter in letters if letter != "-")


NOUNS = tuple(
    Noun(singular, plural, _LETTERS[kind], int(group), fixed == "f")
    for singular, plural, kind, group, fixed in _rows(_NOUNS)
)
VERBS = tuple(
    Verb(base, third, past, participle, gerund, pattern, int(group), _kinds(subjects), _kinds(objects))
    for base, third, past, participle, gerund, pattern, group, subjects, objects in _rows(_VERBS)
)


@dataclass(frozen=True, slots=True)
class Names:
    """The proper names of a split; `person` has first names only."""

    person: tuple[str, ...]
    surname: tuple[str, ...]
    org: tuple[str, ...]
    place: tuple[str, ...]


def known_names() -> Names:
    """The names that every split uses; some are names of both people and places."""
    person, surname, org, place = (_invented(kind, 0, 40) for kind in range(4))
    return Names(person + _AMBIGUOUS, surname + _AMBIGUOUS, org, place + _AMBIGUOUS)


def new_names(split: Split) -> Names:
    """The names that only this split uses; `train` has none, and gets the known names."""
    if split == "train":
        return known_names()
    start = {"dev": 40, "test": 80}[split]
    return Names(*(_invented(kind, start, start + 40) for kind in range(4)))


def _invented(kind: int, start: int, end: int) -> tuple[str, ...]:
    """Names whose form does not reveal their kind: one shuffled list, dealt out in turn."""
    forms = [
        "".join(parts)
        for parts in product(("Ba", "Do", "Ke", "Li", "Mo", "Ra", "Su", "Ve"), _SYLLABLES, _ENDS)
    ]
    random.Random(0).shuffle(forms)
    return tuple(forms[kind::4][start:end])


_SYLLABLES = ("l", "nd", "rm", "st", "v", "tt", "gr", "b")
_ENDS = ("a", "en", "is", "on", "er", "o", "ia", "ow", "ett", "ick")
