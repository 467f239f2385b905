"""Further rows of `test_ways_out.py`: commands on a corpus, an encoder and runs, and their ways out.

`cp` and `rm` are commands, too; `/p` is the place that all tests share, `/o` a folder of the test's own, and
a word's `·` is a space. `/x` are the options of a short training of a translation.
"""

# Rows of the tables are longer than other lines.
# ruff: noqa: E501
from __future__ import annotations

from typing import NamedTuple

from tests.kit.absent import may_be_absent


class Way(NamedTuple):
    """What is refused, how its message ends, and what the message says to do instead; `/p` is the test's place."""

    refused: str
    says: str
    instead: tuple[str, ...]
    given: str = ""
    """Lines for standard input."""
    before: tuple[str, ...] = ()
    """Commands that come first."""
    code: int = 2
    """The exit code of what is refused; 0 if it is done, and a note says what would help."""


COPY = ("cp /p/runs/none /o/r", "rm /o/r/heads.parquet")
"""A run that has not been measured."""
COMPARED = ("cp /p/runs/none /o/a", "cp /p/runs/none /o/b")
MANY = "cp /p/runs/many /o/r"
"""A run, not yet measured, whose test sentences are enough for labels and roles to count."""
ROLES = "figure curve-roles /o/r --out=/o/roles.png"
LABELS = "figure labels /o/r /o/r2 --out=/o/l.png"
PREDICTED = "figure prediction /o/r --out=/o/p.png"
OF_TASKS = "--tasks={acts:{kind:class,layer:acts}} --corpus.path=null"
FILES = "--tasks.acts.files.train=/p/acts/train.jsonl --tasks.acts.files.dev=/p/acts/dev.jsonl --tasks.acts.files.test=/p/acts/test.jsonl"
SHARED = "collaborate /p/enc --out=/o/shared --dim=16 --starts=1 --steps=2 --lengths=[8] --rounds=1"
OVERLAID = "figure energy /o/e.parquet --out=/o/drawn.png"
OF_SHARING = (
    (
        Way(
            "energy /p/enc --mixing=/o/m.parquet",
            "'mtl collaborate' makes such a model",
            (SHARED, "energy /o/shared --mixing=/o/m.parquet"),
        ),
        Way(
            "train /t --tasks=[pos] --seq2seq.components=8",
            "'mtl collaborate' makes encoders whose heads share components",
            (SHARED, "train /t --tasks=[pos] --encoder.name=/o/shared"),
        ),
        Way(
            "figure energy /p/none.parquet --out=/o/e.png",
            "give files that 'mtl energy … --out=FILE' wrote",
            ("energy /p/enc --out=/o/e.parquet", OVERLAID),
        ),
        Way(
            "figure energy /p/broken.parquet --out=/o/e.png",
            "make them again with 'mtl energy'",
            ("energy /p/enc --out=/o/e.parquet", OVERLAID),
        ),
    )
    if not may_be_absent(["collaborate"])
    else ()
)
FURTHER = (
    *OF_SHARING,
    Way("curve /p/runs/dyn --by=[] --gates=[/p/runs/none] /g",
        "use runs trained with --pruning=gates_only, static or dynamic, or --targets to train them",
        ("train /t --tasks=[pos,dep] --pruning=gates_only --from=/p/runs/none --runs=/o --name=gates_only",
         "train /t --tasks=[pos,dep] --pruning=static --from=/p/runs/none --runs=/o --name=static",
         "curve /p/runs/dyn --by=[] --gates=[/o/gates_only,/o/static,/p/runs/dyn] /g",
         "curve /p/runs/dyn --by=[] --targets=[2] --gates_epochs=1 /g")),
    Way("curve /p/runs/dyn --by=[] --targets=[8] --gates_epochs=1 /g",
        "shares exceed 100 %; use --masks=false to start from all heads",
        ("curve /p/runs/dyn --by=[] --targets=[8] --gates_epochs=1 --masks=false /g",), code=0),
    Way("probe /p/runs/dyn --corpus=/p/part --out=/o/probes",
        "has no annotation for the tasks of the run's masks; use another --corpus",
        ("probe /p/runs/dyn --corpus=/p/toy --out=/o/probes",)),
    Way("probe /p/runs/trans", "use --corpus=FOLDER of annotated sources, such as 'mtl predict --output=json' of a run on words makes",
        ("probe /p/runs/trans --corpus=/p/toy --out=/o/probes",)),
    Way("probe /p/runs/none --corpus=/p/part --split=dev --centroids=train --out=/o/probes",
        "is annotated for pos: use --centroids=self",
        ("probe /p/runs/none --corpus=/p/part --split=dev --centroids=self --out=/o/probes",)),
    Way("show /p/runs/dyn L0H1 --corpus=/p/part", "use --masks=false",
        ("show /p/runs/dyn L0H1 --corpus=/p/part --masks=false",)),
    Way("show /p/runs/trans encoder·L0H0", "its corpus has no arcs: use --corpus",
        ("show /p/runs/trans encoder·L0H0 --corpus=/p/toy",)),
    Way("show /p/runs/acts L0H0", "use --sentence, or --corpus=FOLDER of sentences with them (◇)",
        ("show /p/runs/acts L0H0 --sentence=dogs", "show /p/runs/acts L0H0 --corpus=/p/toy")),
    Way("show /p/runs/none L0H1 --id=toy-test-1-5 --sentences=2", "has this id: raise --sentences",
        ("show /p/runs/none L0H1 --id=toy-test-1-5 --sentences=8",)),
    Way("probe /p/enc --unknown=1", "see mtl probe --help", ("probe --help",)),
    Way("train /t --tasks=[pos] --unknown=1", "see --help", ("train --help",)),
    Way("train /t --tasks=[pos] --max_epochs", "is no option with a value: write --max_epochs=VALUE; see mtl train --help",
        ("train --help", "train /t --tasks=[pos] --max_epochs=1")),
    Way("data", "see mtl data --help", ("data --help",)),
    Way("unknown", "see mtl --help", ("--help",)),
    Way("evaluate /p/runs/none --corpus=/p/part", "is annotated for pos, dep: use another --corpus or --split",
        ("evaluate /p/runs/none --corpus=/p/toy", "evaluate /p/runs/none --corpus=/p/part --split=dev")),
    Way("init /p/toy --out=/p/config.yaml", "exists: use another --out", ("init /p/toy --out=/o/config.yaml",)),
    Way("init /p/odd --out=/o/a.yaml",
        "rename them (to train.conllu and dev.conllu, say), or name each file (for translations change configs/translation.yaml)",
        ("cp /p/odd/one.conllu /o/named/train.conllu", "cp /p/odd/two.conllu /o/named/dev.conllu",
         "init /o/named --out=/o/a.yaml",
         "train /t --tasks=[dep] --corpus.path=null --corpus.dep.format=conllu --corpus.dep.train=/p/odd/one.conllu "
         "--corpus.dep.dev=/p/odd/two.conllu --corpus.dep.test=/p/odd/two.conllu")),
    Way("prune /p/runs/pos --out=/p/toy", "is no empty folder: use another --out", ("prune /p/runs/pos --out=/o/cut",)),
    Way("predict /p/runs/trans", "translate text with 'mtl translate'", ("translate /p/runs/trans",), "a man runs\n"),
    Way("predict /p/runs/none", "use --language, or split the words and use --input=tokens",
        ("predict /p/runs/none --language=el", "predict /p/runs/none --input=tokens"), "Ο σκύλος κοιμάται εδώ .\n", code=0),
    Way("data convert --out=/o/c --train=conll2003:/p/odd/swapped.txt",
        "name the columns, such as columns: {word: 2, entity: 1} in a configuration or conll2003:word=2,entity=1:PATH in a command",
        ("data convert --out=/o/c --train=conll2003:word=2,entity=1:/p/odd/swapped.txt",
         "train /t --tasks=[ner] --corpus.path=null --corpus.ner.format=conll2003 --corpus.ner.columns={word:·2,·entity:·1} "
         "--corpus.ner.train=/p/odd/swapped.txt --corpus.ner.dev=/p/odd/swapped.txt --corpus.ner.test=/p/odd/swapped.txt")),
    Way("train /x --corpus.translate.train=/p/par/train.en",
        "write them as SOURCE:TARGET, for instance train.en.gz:train.de.gz", ("train /x",)),
    Way("data stats /o", "no *.jsonl files; make them with 'mtl data convert', 'data ewt5' or 'data toy'",
        ("data toy --out=/o/toy --train=4 --dev=2 --test=2", "data stats /o/toy",
         "data convert --out=/o/c --train=jsonl:/p/toy/train.jsonl", "data stats /o/c")),
    Way("train /t --tasks=[pos] --pruning=fixed --gates.masks=/o/gates.parquet",
        "no such mask file; use the gates.parquet of a run",
        ("train /t --tasks=[pos] --pruning=fixed --gates.masks=/p/runs/pos/gates.parquet",)),
    Way("train /t --tasks=[pos] --pruning=fixed --gates.masks=/p/none.parquet",
        "has no masks in it: use the gates.parquet of a run",
        ("train /t --tasks=[pos] --pruning=fixed --gates.masks=/p/runs/pos/gates.parquet",)),
    Way("compare /o/a --against /o/b", "has no counts per sentence of test; write them with 'mtl evaluate /o/b --split test'",
        ("evaluate /o/b --split test", "compare /o/a --against /o/b --draws=100"),
        before=(*COMPARED, "rm /o/b/sentence_counts")),
    Way("compare /o/a --against /o/b", "write it again with 'mtl evaluate /o/b --split test'",
        ("evaluate /o/b --split test", "compare /o/a --against /o/b --draws=100"),
        before=(*COMPARED, "cp /p/config.yaml /o/b/sentence_counts/test.parquet")),
    Way("figure curve /o/r --split=dev --out=/o/c.png", "the curves are scored on test, not on dev: choose with --split",
        ("figure curve /o/r --split=test --out=/o/c.png",), before=(*COPY, "curve /o/r --by=importance /s")),
    Way("figure curve /o/r --out=/o/c.png", "not finite; make it again with 'mtl curve'",
        ("curve /o/r --by=importance /s", "figure curve /o/r --out=/o/c.png"),
        before=(*COPY, "curve /o/r --by=importance /s", "cp /p/curve.parquet /o/r/curve.parquet")),
    Way("figure agreement /o/r /o/r2 --out=/o/g.png", "left out; 'mtl ablate' and 'mtl importance' make it",
        ("ablate /o/r --draws=100 --sentences=4", "ablate /o/r2 --draws=100 --sentences=4",
         "importance /o/r --sentences=4",
         "figure agreement /o/r /o/r2 --out=/o/g.png"),
        before=(*COPY, "cp /p/runs/dyn /o/r2", "rm /o/r2/heads.parquet")),
    Way("figure heads /o/t.parquet --out=/o/h.png", "make the table again with --out=/o/t.parquet",
        ("cp /p/runs/none /o/r", "ablate /o/r --draws=100 --sentences=4 --out=/o/t.parquet",
         "figure heads /o/t.parquet --out=/o/h.png"),
        before=(*COPY, "ablate /o/r --draws=100 --sentences=4 --out=/o/t.parquet", "rm /o/r")),
    Way("figure heads /o/r --out=/o/r/heads.png", "give another --out, or --tables=false",
        ("figure heads /o/r --out=/o/heads.png", "figure heads /o/r --out=/o/r/heads.png --tables=false"),
        before=(*COPY, "ablate /o/r --draws=100 --sentences=4")),
    Way(PREDICTED, "'mtl importance RUN' makes one", ("importance /o/r --sentences=4", PREDICTED),
        before=(*COPY, "ablate /o/r --draws=100 --sentences=4")),
    Way("ablate /p/toy", "give a folder that 'mtl train' made", ("ablate /p/runs/none --draws=100 --sentences=4",)),
    Way("train /t --tasks=[pos] --name=toy --runs=/p --overwrite=true",
        "overwrite=true deletes runs only; give another --name", ("train /t --tasks=[pos] --name=new --runs=/o --overwrite=true",)),
    Way("train /t --tasks=[pos,dep] --from=/p/runs/dyn --runs=/o --name=later",
        "put what was there back, or give another --name",
        ("train /t --tasks=[pos,dep] --from=/p/runs/none --runs=/o --name=later",
         "train /t --tasks=[pos,dep] --from=/p/runs/dyn --runs=/o --name=another"),
        before=("train /t --tasks=[pos,dep] --from=/p/runs/none --runs=/o --name=later",)),
    Way("train /t --tasks=[pos] --pruning=dynamic --gates.unit=group",
        "no heads of the encoder share keys and values; use gates.unit=head",
        ("train /t --tasks=[pos] --pruning=dynamic --gates.unit=head",)),
    Way("train /t --tasks=[pos,dep] --from=/p/runs/none --name=none --runs=/p/runs", "cannot start from itself (--from): use another --name",
        ("train /t --tasks=[pos,dep] --from=/p/runs/none --name=none --runs=/o",)),
    Way("train /t --tasks=[pos] --name=done --runs=/o", "is finished already; use another --name to train again",
        ("train /t --tasks=[pos] --name=again --runs=/o",), before=("train /t --tasks=[pos] --name=done --runs=/o",), code=0),
    Way("train /t --tasks=[pos] --name=done --runs=/o", "has no metrics.json: 'mtl evaluate /o/done' scores its model again",
        ("evaluate /o/done",),
        before=("train /t --tasks=[pos] --name=done --runs=/o", "rm /o/done/metrics.json"), code=0),
    Way("report /o", "no probes of the encoder before training: 'mtl probe ENCODER --corpus CORPUS --out DIR/pretrained' makes them, DIR being the folder of this report; in a study, the setup pretrained",
        ("probe /p/enc --corpus=/p/toy --out=/o/pretrained", "probe /o/r", "report /o"), before=COPY, code=0),
    Way("report /o", "not probed (no heads.parquet; 'mtl probe' makes it): ◇", ("probe /o/r", "report /o"), before=COPY, code=0),
    Way("report /o", "no run has masks: train with --pruning=dynamic to see them",
        ("train /t --tasks=[pos] --pruning=dynamic --runs=/o --name=masked", "report /o"), before=COPY, code=0),
    Way("importance /o/r --sentences=4 --out=/o/r2/heads.parquet", "/o/r is measured: write its table elsewhere (--out)",
        ("importance /o/r --sentences=4 --out=/o/t.parquet",), before=(*COPY, "cp /p/runs/none /o/r2")),
    Way("probe /o/r", "cannot be read (◇); delete it, and make it again with 'mtl probe'", ("rm /o/r/heads.parquet", "probe /o/r"),
        before=(*COPY, "cp /p/config.yaml /o/r/heads.parquet")),
    Way("curve /o/r --by=random --draws=1 /s", "cannot be read (◇); delete it, and make it again with 'mtl curve'",
        ("rm /o/r/curve.parquet", "curve /o/r --by=random --draws=1 /s"), before=(*COPY, "cp /p/config.yaml /o/r/curve.parquet")),
    Way("report /o", "its sentences cannot be read; make it with 'mtl probe'", ("probe /o/r", "report /o"),
        before=(*COPY, "probe /o/r", "cp /p/damaged.parquet /o/r/examples.parquet"), code=0),
    Way("curve /o/r --by=attention /s", "has attention for dep, srl, not for pos: choose with --task (dep), or choose",
        ("curve /o/r --by=attention --task=dep /s", "curve /o/r --by=importance /s"), before=(MANY, "probe /o/r")),
    Way(ROLES, "no head has a known role: left out; 'mtl probe /o/r' measures roles", ("probe /o/r", ROLES),
        before=(MANY, "ablate /o/r --draws=100 --sentences=4", "curve /o/r --by=random --draws=1 /s")),
    Way(LABELS, "this figure shows one task: choose with --tasks=[dep] (or pos)", (f"{LABELS} --tasks=[pos]", f"{LABELS} --tasks=[dep]"),
        before=(MANY, "probe /o/r", "cp /o/r /o/r2")),
    Way(f"{LABELS} --tasks=[dep]", "/o/r2 was not probed (no heads.parquet): left out; 'mtl probe' makes it",
        ("probe /o/r2", f"{LABELS} --tasks=[dep]"), before=(MANY, "cp /o/r /o/r2", "probe /o/r"), code=0),
    Way("probe /o/pairs", "which is what heads are probed for (◇); use --corpus=FOLDER with annotated sentences",
        ("probe /o/pairs --corpus=/p/toy",),
        before=("train /t --tasks=[mrpc] --corpus.path=null --corpus.mrpc.format=glue --corpus.mrpc.train=/p/odd/pairs.tsv "
                "--corpus.mrpc.dev=/p/odd/pairs.tsv --corpus.mrpc.test=/p/odd/pairs.tsv --runs=/o --name=pairs",)),
    Way("train /t --tasks=[pos] --encoder.name=/p/narrow --encoder.layers=mix",
        "16 numbers per position and the others 32: use encoder.layers=last",
        ("train /t --tasks=[pos] --encoder.name=/p/narrow --encoder.layers=last",)),
)  # fmt: skip
