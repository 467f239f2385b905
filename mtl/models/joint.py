"""The joint model: one encoder, a decoder per task, and gates on the encoder's heads if there are any."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from huggingface_hub import CommitInfo
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.errors import InputError
from mtl.files import write_text
from mtl.heads.arguments import dtype_of, one_of, path_or_hub_name, short_text
from mtl.heads.gates import Gates, HeadScales, TaskScale, open_heads
from mtl.models.annotator import Annotator, Decoded, TaskScores
from mtl.models.batches import Batch
from mtl.models.hub import model_folder, upload
from mtl.models.model_files import (
    HeadsOfTask,
    Origin,
    Parts,
    card,
    load_weights,
    read_parts,
    weights_checksum,
    write_model,
)
from mtl.models.pass_graphs import graphs_for
from mtl.models.passes import not_finite
from mtl.models.pretrained import AttentionKind
from mtl.models.tapped import SharedEncoder
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.rules import TaskRules
from mtl.tasks.task import Labels, Task


def _in_its_type(decoder: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A decoder's inputs, vectors of words in the type of its own weights: the encoder's may be another."""
    own = next(decoder.parameters(), None)
    return inputs if own is None else (inputs[0].to(own.dtype), *inputs[1:])


def _shares(batch: Batch, sums: Mapping[str, Float[Tensor, ""]]) -> dict[str, Float[Tensor, ""]]:
    """The losses of tasks, of their sums over a batch's sentences."""
    share = 0.0 if batch.idle else 1.0
    shares = [share / max(batch.loss_units[name], 1) for name in sums]
    return dict(zip(sums, torch._foreach_mul([*sums.values()], shares), strict=True)) if sums else {}


def _sum_of_sentences(
    decoder: Decoder,
    kind: Callable[..., Any],
    first: bool,
    words: Float[Tensor, "row _ hidden"],
    there: Int[Tensor, " row"],
    mask: Int[Tensor, "row word"],
    *targets: Tensor,
) -> Float[Tensor, ""]:
    """The sum of the losses of rows that are `there`; the fields of targets are those of a `kind`."""
    within = mask.bool()
    if first:
        words, within = decoder.as_read(words, within)
    losses = decoder.loss(decoder(words, within), kind(*targets), within)
    return torch.where(there.bool(), losses, 0.0).sum()


class JointModel(Annotator):
    """A shared encoder under the decoders of one or more tasks.

    With one shared mask, one pass through the encoder serves all tasks. With a mask per task, a sentence
    becomes one row for each task annotated on it. All rows are in one batch, and each has its own mask.

    Raises `InputError` for a task that reads the first token (`pooling=first`) of a decoder-only model, or of
    an encoder without a special token there.
    """

    def __init__(
        self,
        encoder: SharedEncoder,
        tasks: Mapping[str, Task],
        labels: Mapping[str, Labels],
        gates: Gates | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.gates = encoder, gates
        self.tasks, self.labels = dict(tasks), dict(labels)
        encoder.serve(tasks)
        self.origin = Origin()
        """What the model was made from and how it scored, if it was loaded from a run or a saved model."""
        self._when_loaded: int | None = None
        self.decoders = nn.ModuleDict(
            {name: task.new_decoder(encoder.hidden, labels[name]) for name, task in tasks.items()}
        )
        for decoder in self.decoders.values():
            decoder.register_forward_pre_hook(_in_its_type)
        for name, task in tasks.items():
            key = f"tasks.{name}.pooling" if task.standard else f"{name}.pooling"
            if self.decoder(name).reads_first and encoder.causal:
                raise InputError(
                    f"{key}=first: the first token of a decoder-only model sees nothing of the "
                    "sentence; use mean or attention"
                )
            if self.decoder(name).reads_first and not encoder.tokenizer.prefix:
                raise InputError(
                    f"{key}=first: the encoder's tokenizer puts no special token before a sentence; "
                    "use mean or attention"
                )

    @property
    def tokenizer(self) -> Any:
        return self.encoder.tokenizer

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def does(self) -> str:
        return self.encoder.does

    @property
    def instead(self) -> str:
        return self.encoder.instead

    @property
    def scales(self) -> HeadScales:
        """What multiplies the heads, for each task."""
        tap = self.encoder.tap
        return HeadScales(tuple(self.tasks), tap.remaining, tap.heads, self.gates)

    def forward(
        self,
        batch: Batch,
        head_scale: TaskScale | None = None,
        *,
        sentence_scale: Float[Tensor, "batch site head"] | None = None,
    ) -> dict[str, TaskScores]:
        """Scores per task of the batch.

        `head_scale` replaces the gates: one scale for all tasks, or one per task in the order of
        `tasks`. Without it, gates are sampled in training and deterministic otherwise. `sentence_scale`
        multiplies either of them, for all tasks.
        """
        vectors = self._vectors(batch, head_scale, sentence_scale)
        return {name: self._scores(batch, name, words) for name, words in vectors.items()}

    def _vectors(
        self,
        batch: Batch,
        head_scale: TaskScale | None,
        sentence_scale: Float[Tensor, "batch site head"] | None,
    ) -> dict[str, Float[Tensor, "row _ hidden"]]:
        """What each task's decoder reads (`Decoder.as_read`), of the sentences annotated in it."""
        if head_scale is None:
            head_scale = self.scales.in_pass()
        rows = batch.rows
        if not rows:
            return {}
        first = self.reads_first(rows)
        if head_scale is None or head_scale.dim() == 2:
            scale = sentence_scale if head_scale is None else head_scale
            if head_scale is not None and sentence_scale is not None:
                scale = head_scale * sentence_scale
            words = self.encoder(batch.subwords, scale, first)
            vectors = {name: words if len(row) == len(words) else words[row] for name, row in rows.items()}
        else:
            sizes = [len(row) for row in rows.values()]
            index = torch.cat(list(rows.values()))
            of_tasks = dict(zip(self.tasks, head_scale.unbind(), strict=True))  # one gradient for all
            scale = torch.cat([of_tasks[name].expand(len(row), -1, -1) for name, row in rows.items()])
            if sentence_scale is not None:
                scale = scale * sentence_scale[index]
            words = self.encoder(batch.subwords.take(index), scale, first)
            vectors = dict(zip(rows, words.split(sizes), strict=True))
        return {name: self.encoder.of_task(name, of_task) for name, of_task in vectors.items()}

    def _scores(self, batch: Batch, name: str, words: Float[Tensor, "row _ hidden"]) -> TaskScores:
        row, decoder = batch.rows[name], self.decoder(name)
        mask = batch.mask if len(row) == len(batch.mask) else batch.mask[row]
        if self.reads_first(batch.rows):
            words, mask = decoder.as_read(words, mask)
        return TaskScores(decoder(words, mask), mask)

    def decoded(
        self,
        batch: Batch,
        head_scale: TaskScale | None = None,
        *,
        given: bool = False,
        k: int | None = None,
        rules: Mapping[str, TaskRules] | None = None,
    ) -> dict[str, Decoded]:
        searched = self.encoder.decoded(self, batch, head_scale, given)
        if searched is not None:
            return searched
        return super().decoded(batch, head_scale, given=given, k=k, rules=rules)

    def losses(self, batch: Batch, scores: Mapping[str, TaskScores]) -> dict[str, Float[Tensor, ""]]:
        """This rank's loss for each task in nats, divided by the whole update's units (`Task.loss_unit`).

        In an `idle` batch, losses are 0 and still have a graph.
        """
        return _shares(batch, {name: self._sum(batch, name, output) for name, output in scores.items()})

    def losses_by_graphs(
        self, batch: Batch, head_scale: TaskScale | None = None
    ) -> dict[str, Float[Tensor, ""]]:
        """The `losses` of a forward pass, by the graphs in use here if the batch has rounded shapes."""
        first, sums, padded = self.reads_first(batch.rows), {}, {}
        for name, words in self._vectors(batch, head_scale, None).items():
            decoder = self.decoder(name)
            graphs = graphs_for(decoder) if name in batch.padded else None
            if graphs is None:
                sums[name] = self._sum(batch, name, self._scores(batch, name, words))
                continue
            there, mask, *targets = batch.padded[name]
            key = (id(words), mask.shape)  # tasks may read the same vectors
            if key not in padded:
                below, beside = len(mask) - len(words), mask.shape[1] + first - words.shape[1]
                padded[key] = functional.pad(words, (0, 0, 0, beside, 0, below))
            loss = partial(_sum_of_sentences, decoder, type(batch.targets[name]), first)
            inputs = (padded[key], there, mask, *targets)
            sums[name] = graphs.run(decoder, f"the decoder of {name}", loss, inputs)
        return _shares(batch, sums)

    def _sum(self, batch: Batch, name: str, output: TaskScores) -> Float[Tensor, ""]:
        return self.decoder(name).loss(output.scores, batch.targets[name], output.mask).sum()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model and its card (README.md, which is replaced) to a folder, for `from_pretrained`.

        The card names the encoder and the corpus, and contains the scores of the run that the model was
        loaded from. If the model has been changed since, the card has no scores.

        Raises `InputError` if there is a file in place of the folder.
        """
        folder = path_or_hub_name(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file: give the name of a folder")
        self.save_with_card(folder, folder.resolve().name)

    def push_to_hub(
        self,
        name: str,
        *,
        commit_message: str = "Upload a joint model",
        private: bool | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        token: str | bool | None = None,
    ) -> CommitInfo:
        """Upload the model with its card to a repository of the hub, which is created if necessary.

        Args:
            name: the repository, as `OWNER/NAME`.
            commit_message: the first line of the commit.
            private: whether a new repository is private; `None`: the owner's default.
            revision: the branch, which is created if necessary; `None`: main.
            create_pr: whether to open a pull request instead of committing.
            token: a token with write access; `None`: that of the hub's login.

        Raises:
            InputError: the name is invalid, writing is not permitted, or the hub does not answer.
        """
        if not isinstance(name, str):
            raise InputError(f"name={short_text(name)}: use the name of a repository, as in 'OWNER/NAME'")
        with tempfile.TemporaryDirectory() as folder:
            self.save_with_card(Path(folder), name)
            return upload(
                Path(folder), name, message=commit_message, private=private, revision=revision,
                create_pr=create_pr, token=token,
            )  # fmt: skip

    def save_with_card(self, folder: Path, name: str) -> None:
        """As `save_pretrained`, with a card for a model of this name."""
        if broken := not_finite(self.named_parameters()):
            raise InputError(f"{broken[0]} has values that are not finite: no model with them can be loaded")
        changed = self._when_loaded is not None and self._when_loaded != weights_checksum(self)
        origin = dataclasses.replace(self.origin, scores={}) if changed else self.origin
        self.save(folder, origin)
        scales, tap = self.scales, self.encoder.tap
        there = sum(map(len, tap.remaining))
        heads = {
            name: HeadsOfTask(open_heads(scales.of_task(name)), there, self.gates is not None)
            for name in self.tasks
        }
        write_text(folder / "README.md", card(name, origin, heads, tap.sites, changed))

    def save(self, folder: Path, origin: Origin | None = None) -> None:
        """Write the model to `folder`; everything is JSON, safetensors or tokenizer files."""
        parts = Parts(self.encoder, self.tasks, self.labels, self.gates)
        write_model(folder, parts, self.state_dict(), self._masks(), origin)

    @torch.no_grad()
    def _masks(self) -> Float[Tensor, "mask site head"] | None:
        """The factors of heads that are not part of the encoder's weights; `None`: there are none."""
        return None if self.gates is None else self.gates.gate()

    @classmethod
    @torch.random.fork_rng([])  # decoders draw weights before they are loaded
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        attention: AttentionKind = "sdpa",
        dtype: torch.dtype | str | None = None,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
    ) -> JointModel:
        """Load a trained model, in evaluation mode.

        Args:
            name: the folder of a run, a folder that `save_pretrained` wrote, or a repository on the hub
                (`OWNER/NAME`) that `push_to_hub` made. A `Path` is a folder.
            attention: `sdpa` or `eager`; families without the former use the latter.
            dtype: type of the transformer's weights; `None`: float32; `auto`: as they were saved. Word
                vectors, decoders and gates stay in float32.
            revision: a branch, tag or commit of the repository.
            cache_dir: where downloads are kept; `None`: the hub's cache.
            token: access token of the hub; `None`: the token stored by the hub's login.
            local_files_only: use only files in the cache.

        Raises:
            InputError: the folder or repository does not exist, or holds no joint model or a damaged one.
        """
        one_of(attention, "attention", get_args(AttentionKind))
        weights = torch.float32 if dtype is None else dtype_of(dtype)
        folder = model_folder(name, revision, cache_dir, token, local_files_only)
        parts, origin, files = read_parts(folder, attention, weights)
        model = cls(*parts)
        load_weights(model, folder, files)
        model.origin, model._when_loaded = origin, weights_checksum(model)
        return model.eval()
