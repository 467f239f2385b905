"""Train supar's own parsers on the small subset, with the encoder and the number of epochs of ours.

    python docs/results/small-subset/supar_parsers.py PARSER SEED [CORPUS]

PARSER is biaffine, crf, crf2o or vi. Prints supar's lines, and last UAS and LAS on test, with punctuation.
"""

import json
import sys
import tempfile
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
}


def write_conll(source: Path, target: Path) -> None:
    """Write words, heads and relations in ten columns."""
    with target.open("w") as out:
        for line in source.read_text().splitlines():
            sentence = json.loads(line)
            arcs = sentence["arcs"]
            rows = zip(sentence["words"], arcs["heads"], arcs["relations"], strict=True)
            for i, (word, head, relation) in enumerate(rows, 1):
                print(i, word, "_", "_", "_", "_", head, relation, "_", "_", sep="\t", file=out)
            print(file=out)


name, seed = sys.argv[1], int(sys.argv[2])
corpus = Path(sys.argv[3] if len(sys.argv) > 3 else "data/small")

# supar 1.1.4 was written for older versions of both.
load = torch.load
torch.load = lambda *given, **named: load(*given, **named | {"weights_only": False})

with tempfile.TemporaryDirectory() as folder:
    files = {split: f"{folder}/{split}.conllx" for split in ("train", "dev", "test")}
    for split, path in files.items():
        write_conll(corpus / f"{split}.jsonl", Path(path))
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
    transformers.AdamW = sys.modules["transformers"].AdamW = torch.optim.AdamW
    parser.train(**given)
    _, scores = PARSERS[name].load(f"{folder}/model").evaluate(files["test"], **given | {"verbose": False})
print(json.dumps({"parser": name, "seed": seed, "uas": 100 * scores.uas, "las": 100 * scores.las}))
