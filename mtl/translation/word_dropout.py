"""Word dropout of translations: in training, some subwords are read as others."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from mtl.errors import InputError
from mtl.translation.pieces import ParallelTokenizer
from mtl.translation.task import Translate


class WordDropout:
    """Replaces subwords of the source, and of what the decoder reads of the translation.

    Special tokens, which include padding and codes of languages, stay.

    Raises `InputError` if they are to be replaced by the unknown token and the tokenizer has none.
    """

    def __init__(self, task: Translate, tokenizer: ParallelTokenizer) -> None:
        self.source, self.target = task.source_word_dropout, task.target_word_dropout
        fast = tokenizer.tokenizer
        self._special = torch.tensor(sorted(fast.all_special_ids))
        self._unknown: int | None = fast.unk_token_id
        self._ordinary: Int[Tensor, " subword"] | None = None
        if task.replaced_by == "random":
            special = set(fast.all_special_ids)
            self._ordinary = torch.tensor([piece for piece in range(len(fast)) if piece not in special])
        elif (self.source or self.target) and self._unknown is None:
            place = f"tasks.{task.name}" if task.standard else task.name
            raise InputError(
                f"{place}.replaced_by=unknown: the model's tokenizer has no unknown token: use "
                f"{place}.replaced_by=random"
            )

    def __call__(self, ids: Int[Tensor, "row subword"], share: float) -> Int[Tensor, "row subword"]:
        """The subwords, of which this share is replaced; each is drawn for itself."""
        if not share:
            return ids
        drawn = torch.rand(ids.shape, device=ids.device) < share
        drawn &= ~torch.isin(ids, self._special.to(ids.device))
        if self._ordinary is None:
            assert self._unknown is not None
            return ids.masked_fill(drawn, self._unknown)
        ordinary = self._ordinary.to(ids.device)
        others = ordinary[torch.randint(len(ordinary), ids.shape, device=ids.device)]
        return torch.where(drawn, others, ids)
