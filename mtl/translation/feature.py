"""What translation adds to the core: a task, the models that it is trained on, its files and its command."""

from __future__ import annotations

from mtl.features import Command, Feature, FormatRow, Keys, ModelKind

FEATURE = Feature(
    commands={
        "translate": Command(
            "mtl.translation.command:translate", "translate text, line by line", answers=True,
            after="predict",
        )
    },
    tasks={"translate": "mtl.translation.task:Translate"},
    own_models={
        "seq2seq": ModelKind(
            encoder="mtl.translation.seq2seq:Seq2Seq",
            attentions=("encoder", "decoder", "cross"),
            heads="mtl.translation.config:heads",
            copies="mtl.translation.ablation:TranslatedCopies",
        )
    },
    formats={
        "parallel": FormatRow(
            "mtl.translation.two_files:read_parallel", "mtl.translation.two_files:pair_of_files",
            ("translate",),
        )
    },
    keys={
        "seq2seq": Keys(
            "mtl.translation.config:SLOT", check="mtl.translation.config:check_translation", joint=False
        )
    },
)  # fmt: skip
