"""`mtl demo`."""

from __future__ import annotations

from pathlib import Path


def demo(*, out: Path = Path("runs/demo"), sentences: int = 1200, epochs: int = 4) -> int:
    """Train the five tasks jointly on the generated corpus, with the embedded encoder.

    Args:
        out: Folder of the run; its corpus stands beside it.
        sentences: Training sentences.
        epochs: Passes over them.
    """
    from mtl.commands.train import train
    from mtl.config import BatchConfig, CorpusConfig, OptimizerConfig, TrainConfig
    from mtl.corpora.toy import write_toy

    corpus = out.parent / f"{out.name}-corpus"
    if not (corpus / "test.jsonl").exists():
        write_toy(corpus, sentences, 200, 200, seed=1)
    return train(
        TrainConfig(
            name=out.name,
            runs=str(out.parent),
            corpus=CorpusConfig(str(corpus)),
            batch=BatchConfig(sentences=16),
            optimizer=OptimizerConfig(encoder_lr=3e-4, decoder_lr=2e-3),
            max_epochs=epochs,
        )
    )
