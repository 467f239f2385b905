"""`mtl evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from mtl.commands.measured_run import print_left_out
from mtl.commands.score_table import print_scores
from mtl.config.parse import read_configuration
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.runs.folder.run import Run
from mtl.tasks.catalogue import LAYERS

if TYPE_CHECKING:
    from mtl.tasks.sentence import Sentence


def evaluate(
    run: Path,
    split: Literal["train", "dev", "test"] = "test",
    corpus: Path | None = None,
    export: Path | None = None,
    json_out: Path | None = None,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    precision: Literal["32-true", "bf16-true"] = "32-true",
) -> None:
    """Score a run's model in all of its tasks that the sentences are annotated for.

    Args:
        run: The run's folder.
        split: Split of the corpus.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for translations; default: the run's own corpus.
        export: Folder for gold and prediction in the formats of the official scorers.
        json_out: File for the scores.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the encoder's weights: faster where bfloat16 is in hardware, and scores
            may differ in the last digits.
    """
    import mtl.models.evaluate
    from mtl.corpora.checks import Look, notes_on
    from mtl.corpora.load import corpus_at, load_split
    from mtl.corpora.scorer_files import export as write_export
    from mtl.files import write_json
    from mtl.models.batches import examples
    from mtl.models.device import prepare
    from mtl.models.joint import JointModel
    from mtl.models.limits import require_limit
    from mtl.models.unknown_words import describe_unknown
    from mtl.runs.folder import sentence_counts

    opened = Run.open(run)
    model = prepare(JointModel.from_pretrained(opened.model), accelerator, precision)
    config = read_configuration(TrainConfig, opened.folder / "config.yaml")
    source = config.corpus if corpus is None else corpus_at(corpus, tuple(model.tasks))
    gold = load_split(source, tuple(model.tasks), split)
    annotated = {name: task for name, task in model.tasks.items() if any(map(task.annotated, gold))}
    if not annotated:
        raise InputError(
            f"no {split} sentence of {len(gold)} is annotated for {', '.join(model.tasks)}: use another "
            "--corpus or --split"
        )
    print_left_out(
        "scored",
        [f"{name}: no {split} sentence is annotated for it" for name in model.tasks if name not in annotated],
    )
    for line in notes_on(Look({split: gold}, annotated, model.labels)):
        print(line)
    if corpus is not None or split != "train":
        for line in _in_train(config, tuple(model.tasks), split, gold):
            print(line)
    require_limit(gold, config.batch.max_words, split)
    corpus_examples = examples(gold, model.encoder.tokenizer, model.tasks, model.labels)
    if message := describe_unknown(corpus_examples, getattr(model.encoder.tokenizer, "unknown", -1)):
        print(f"{split}: {message}")
    scores, counts = mtl.models.evaluate.evaluate_sentences(model, corpus_examples)
    if corpus is None and precision == "32-true":
        sentence_counts.write(opened, split, counts)
    print_scores({split: scores}, str(run))
    signatures = mtl.models.evaluate.signatures_of(model.tasks)
    for of_task in signatures.values():
        for of_scores in of_task.values():
            for signature in of_scores.values():
                print(signature)
    if json_out is not None:
        write_json(json_out, {split: scores, **signatures})
    if export is not None:
        tasks = model.tasks.values()
        without_gold = {task.layer: None for task in tasks if task.layer in LAYERS}
        bare = [sentence.with_layers(without_gold) for sentence in gold]
        exported = write_export(gold, model.annotate(bare, config.batch.max_words), export, tasks)
        for path in exported.paths:
            Console(markup=False, emoji=False).print(f"wrote {path}", highlight=False, soft_wrap=True)
        for items, count in exported.left_out.items():
            Console(markup=False, emoji=False).print(
                f"left out of these files: {count} {items}", highlight=False
            )


def _in_train(
    config: TrainConfig, tasks: tuple[str, ...], split: str, gold: Sequence[Sentence]
) -> Iterator[str]:
    """A line with the number of sentences that the model was trained on; one, too, if that is not known."""
    from mtl.corpora.checks import shared_sentences
    from mtl.corpora.load import load_split

    try:
        train = load_split(config.corpus, tasks, "train")
    except (InputError, OSError) as error:
        yield f"{split}: whether its sentences are in train is not known: {error}"
        return
    yield from shared_sentences({"train": train, split: gold})
