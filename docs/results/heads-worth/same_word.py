"""How often each head of an encoder looks from a word to the same word in the other sentence of a pair.

python docs/results/heads-worth/same_word.py PAIRS MODEL…    # MRPC's tab-separated file; folders with a model
"""

import csv
import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

PAIRS = 200


@torch.inference_mode()
def shares(folder: str, pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, int]:
    """Per layer and head the share of pieces whose most attended piece is the same one in the other sentence,
    of all pieces that the other sentence has, too; and their number."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()
    hits, total = torch.zeros(model.config.num_hidden_layers, model.config.num_attention_heads), 0
    for first, second in pairs:
        encoding = tokenizer(first, second, return_tensors="pt")
        pieces = encoding["input_ids"][0]
        of = torch.tensor([-1 if part is None else part for part in encoding.sequence_ids(0)])
        same = (pieces[:, None] == pieces) & (of[:, None] != of) & (of[:, None] >= 0) & (of >= 0)
        counted = same.any(1)
        attended = torch.cat(model(**encoding, output_attentions=True).attentions).argmax(-1)
        hits += same[torch.arange(len(pieces)), attended][..., counted].sum(-1)
        total += int(counted.sum())
    return hits / total, total


def main(path: str, *folders: str) -> None:
    """Print the heads that do so most, numbered from 1."""
    with Path(path).open(encoding="utf-8-sig") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        pairs = [(row["#1 String"], row["#2 String"]) for row, _ in zip(rows, range(PAIRS), strict=False)]
    for folder in folders:
        share, total = shares(folder, pairs)
        best = []
        for number in share.flatten().argsort(descending=True)[:5].tolist():
            layer, head = divmod(number, share.shape[1])
            best.append(f"{layer + 1}.{head + 1} {100 * share[layer, head]:.1f} %")
        print(f"{folder}: {', '.join(best)}; median {100 * share.median():.1f} % of {total:,} pieces")


if __name__ == "__main__":
    main(*sys.argv[1:])
