"""`mtl evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtl.commands.common import Accelerator, Precision, print_left_out, print_scores, sentence_progress
from mtl.config.arguments import OutFile, OutFolder
from mtl.config.parse import read_configuration
from mtl.config.schema import BatchConfig, Split, TrainConfig
from mtl.errors import InputError
from mtl.models.found import find_model, is_hub_name, is_model_folder, loader_of

if TYPE_CHECKING:
    from mtl.tasks.sentence import Sentence
    from mtl.tasks.task import Task


def evaluate(
    run: str,
    split: Split = "test",
    corpus: Path | None = None,
    export: OutFolder | None = None,
    json_out: OutFile | None = None,
    tasks: tuple[str, ...] | None = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    revision: str | None = None,
) -> None:
    """Score a run's model in the tasks for which the sentences are annotated.

    Args:
        run: A run's folder, a saved model's, an exported one's, or a model on the hub (OWNER/NAME).
        split: Split of the corpus.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for a task of two files; default: the run's own.
            A model without its run needs one.
        export: Folder for gold and prediction in the formats of the official scorers.
        json_out: File for the scores.
        tasks: Only these tasks, for instance --tasks=[pos,ner]; default: all.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the weights: faster if the hardware supports bfloat16, and scores may
            differ in the last digits.
        revision: A branch, tag or commit of a model on the hub.
    """
    import mtl.models.evaluate
    from mtl.corpora.checks import CorpusCheck, notes_on
    from mtl.corpora.load import corpus_at, kinds_of, load_split
    from mtl.corpora.scorers import export_for_scorers
    from mtl.files import write_json
    from mtl.models.annotator import chosen_tasks
    from mtl.models.batches import count_unknown, examples, require_limit
    from mtl.models.opened import annotator_at
    from mtl.runs.compare.scores import learned_nothing
    from mtl.runs.folder import run_tables

    if corpus is None and (is_hub_name(run) or is_model_folder(Path(run)) or loader_of(Path(run))):
        raise InputError(f"{run} is a model without its run, which would name a corpus: use --corpus=FOLDER")
    found = find_model(run, revision)
    counted = found.run if corpus is None and precision == "32-true" else None
    if counted is not None and tasks is None:
        run_tables.check_counts_place(counted, split)
    model = annotator_at(found.model, accelerator, precision)
    chosen = chosen_tasks(model.tasks, tasks)
    config = None if found.run is None else read_configuration(TrainConfig, found.run.folder / "config.yaml")
    max_words = BatchConfig.max_words if config is None else config.batch.max_words
    if corpus is not None:
        source = corpus_at(corpus, kinds_of(chosen))
    else:
        assert config is not None
        source = config.corpus
    gold = load_split(source, chosen, split)
    annotated = {name: task for name, task in chosen.items() if any(map(task.annotated, gold))}
    if not annotated:
        raise InputError(
            f"no {split} sentence of {len(gold)} is annotated for {', '.join(chosen)}: use another "
            "--corpus or --split"
        )
    print_left_out(
        "scored",
        [f"{name}: no {split} sentence is annotated for it" for name in chosen if name not in annotated],
    )
    for line in notes_on(CorpusCheck({split: gold}, annotated, model.labels)):
        print(line)
    if corpus is not None or split != "train":
        for line in _in_train(config, chosen, split, gold):
            print(line)
    require_limit(gold, max_words, split)
    corpus_examples = examples(gold, model.tokenizer, chosen, model.labels)
    if message := count_unknown(corpus_examples, getattr(model.tokenizer, "unknown", -1)).described():
        print(f"{split}: {message}")
    with sentence_progress(len(corpus_examples)) as advance:
        scores, counts = mtl.models.evaluate.evaluate_sentences(model, corpus_examples, advance)
    if counted is not None and len(chosen) == len(model.tasks):
        run_tables.write_counts(counted, split, counts)
    print_scores({split: scores}, run)
    for line in learned_nothing(
        {split: scores}, {name: task.score for name, task in chosen.items()}
    ).values():
        print(f"note: {line}")
    signatures = mtl.models.evaluate.signatures_of(chosen)
    for of_task in signatures.values():
        for of_scores in of_task.values():
            for signature in of_scores.values():
                print(signature)
    if json_out is not None:
        write_json(json_out, {split: scores, **signatures})
    if export is not None:
        without_gold = {task.layer: None for task in chosen.values() if task.layers}
        bare = [sentence.with_layers(without_gold) for sentence in gold]
        predicted = []
        with sentence_progress(len(bare)) as advance:
            for sentence in model.annotate_stream(bare, max_words=max_words, tasks=list(chosen)):
                predicted.append(sentence)
                advance(1)
        exported = export_for_scorers(gold, predicted, export, chosen.values())
        for path in exported.paths:
            print(f"wrote {path}")
        for items, count in exported.left_out.items():
            print(f"left out of these files: {items}: {count:,}")


def _in_train(
    config: TrainConfig | None, tasks: Mapping[str, Task], split: str, gold: Sequence[Sentence]
) -> Iterator[str]:
    """A line with the number of sentences that are in train, if any; also a line if that is not known."""
    from mtl.corpora.checks import shared_sentences, texts_of
    from mtl.corpora.load import load_split

    if config is None:
        yield f"{split}: whether its sentences are in train is not known: the model has no run"
        return
    try:
        train = load_split(config.corpus, tasks, "train")
    except (InputError, OSError) as error:
        yield f"{split}: whether its sentences are in train is not known: {error}"
        return
    yield from shared_sentences("train", texts_of(train), split, gold)
