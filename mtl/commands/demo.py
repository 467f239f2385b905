"""`mtl demo`."""

from __future__ import annotations

from pathlib import Path


def demo(out: Path = Path("runs/demo"), sentences: int = 1500, epochs: int = 5) -> int:
    """Train the five tasks jointly on the generated corpus, with the embedded encoder.

    Args:
        out: Folder of the run; its corpus goes to its `corpus` folder.
        sentences: Training sentences.
        epochs: Passes over them.
    """
    from mtl.commands.train import train
    from mtl.config import BatchConfig, CorpusConfig, TrainConfig
    from mtl.corpora.toy import write_toy

    corpus = out.parent / f"{out.name}-corpus"
    write_toy(corpus, sentences, 200, 200, seed=1)
    return train(
        TrainConfig(
            name=out.name,
            runs=str(out.parent),
            corpus=CorpusConfig(str(corpus)),
            batch=BatchConfig(sentences=32),
            max_epochs=epochs,
        )
    )
