"""Train supar's own parsers on the small subset, with the encoder and the number of epochs of ours.

    python docs/results/small-subset/supar_parsers.py PARSER SEED [CORPUS]

PARSER is biaffine, crf, crf2o or vi, or graph-vi with a corpus of graphs. Prints supar's lines, and last the
scores on test: UAS and LAS with punctuation, or F1 of arcs over all gold arcs, as ours is.
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import supar
import torch
import transformers

from mtl.models.found import embedded_minilm

PARSERS = {
    "biaffine": supar.BiaffineDependencyParser,
    "crf": supar.CRFDependencyParser,
    "crf2o": supar.CRF2oDependencyParser,
    "vi": supar.VIDependencyParser,
    "graph-vi": supar.VISemanticDependencyParser,
}


def write_conll(source: Path, target: Path, graphs: bool) -> list[set[tuple[int, int, str]]]:
    """Write words with heads and relations, or with graphs, in ten columns, and give the graphs' arcs."""
    gold = []
    with target.open("w") as out:
        for line in source.read_text().splitlines():
            sentence = json.loads(line)
            words = sentence["words"]
            tree = zip(sentence["arcs"]["heads"], sentence["arcs"]["relations"], strict=True)
            arcs = [(i, *arc) for i, arc in enumerate(tree, 1)]
            if graphs:
                arcs = [tuple(arc) for arc in sentence["layers"]["deps"]["arcs"]]
                gold.append(set(arcs))
                # supar has room for one arc between two words, and a word is no head of its own.
                of_pairs = {(i, j): label for i, j, label in reversed(arcs) if i != j}
                arcs = [(*pair, label) for pair, label in of_pairs.items()]
            for i, word in enumerate(words, 1):
                of_word = sorted(arc[1:] for arc in arcs if arc[0] == i)
                columns = ["_", "_", *(map(str, of_word[0]) if not graphs else "__")]
                graph = "|".join(f"{head}:{label}" for head, label in of_word) if graphs and of_word else "_"
                print(i, word, "_", "_", *columns, graph, "_", sep="\t", file=out)
            print(file=out)
    return gold


def read_graphs(path: Path) -> list[set[tuple[int, int, str]]]:
    """The arcs in the ninth column of each sentence."""
    graphs = []
    for block in path.read_text().strip().split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines()]
        arcs = (
            (int(row[0]), *arc.split(":", 1)) for row in rows if row[8] != "_" for arc in row[8].split("|")
        )
        graphs.append({(i, int(head), label) for i, head, label in arcs})
    return graphs


def f1(gold: list[set], predicted: list[set]) -> float:
    """In per cent, over all sentences."""
    right = sum(len(a & b) for a, b in zip(gold, predicted, strict=True))
    return 200 * right / sum(len(arcs) for arcs in gold + predicted)


name, seed = sys.argv[1], int(sys.argv[2])
corpus = Path(sys.argv[3] if len(sys.argv) > 3 else "data/small")

# supar 1.1.4 was written for older versions of both.
load = torch.load
torch.load = lambda *given, **named: load(*given, **named | {"weights_only": False})

with tempfile.TemporaryDirectory() as folder:
    files = {split: f"{folder}/{split}.conllx" for split in ("train", "dev", "test")}
    graphs = name == "graph-vi"
    for split, path in files.items():
        gold = write_conll(corpus / f"{split}.jsonl", Path(path), graphs)  # last, of test
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    given = {
        "build": True,
        "checkpoint": False,
        "encoder": "bert",
        "bert": str(embedded_minilm()),
        "n_bert_layers": 1,
        "finetune": True,
        "proj": name == "crf2o",
        "tree": True,
        "mbr": name in ("crf", "crf2o"),
        "punct": True,
        "n_label_mlp": 100,  # of graphs: the default of 600 makes 74 million weights for 206 labels
        "lr": 3e-4,  # our defaults for MiniLM: 3e-4 and 2e-3
        "lr_rate": 20 / 3,
        "warmup": 0.1,
        "clip": 5.0,
        "epochs": 5,
        "patience": 5,
        "batch_size": 233,  # words with the root: 125 batches an epoch, as ours has
        **files,
    }
    parser = PARSERS[name].build(path=f"{folder}/model", **given)
    transformers.AdamW = sys.modules["transformers"].AdamW = partial(torch.optim.AdamW, fused=True)
    parser.train(**given)
    parser = PARSERS[name].load(f"{folder}/model")
    if graphs:
        parser.predict(files["test"], pred=f"{folder}/predicted", **given | {"verbose": False})
        found = read_graphs(Path(f"{folder}/predicted"))
        bare = [[{arc[:2] for arc in graph} for graph in side] for side in (gold, found)]
        scored = {"unlabelled_f1": f1(*bare), "f1": f1(gold, found)}
    else:
        _, scores = parser.evaluate(files["test"], **given | {"verbose": False})
        scored = {"uas": 100 * scores.uas, "las": 100 * scores.las}
print(json.dumps({"parser": name, "seed": seed} | scored))
