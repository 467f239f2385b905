"""Make the heads of a transformer share query and key components (Cordonnier et al. 2020).

The stack of products W_Q[h] W_K[h]^T is a tensor of heads x inputs x inputs. Its canonical polyadic (CP)
decomposition of rank D writes it as the sum over D components of a query vector, a key vector and a weight
for each head (Cordonnier et al. 2020). The tensor itself is never formed: everything that alternating least
squares needs follows from the heads' own matrices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from mtl.collaborative.attention import CollaborativeAttention, query_bias, query_key
from mtl.errors import InputError
from mtl.heads.arguments import function_of, seed_of, whole_number
from mtl.heads.attentions import (
    Attention,
    attentions,
    give_own_configuration,
    query_key_parameters,
    record,
    recorded_by_site,
)
from mtl.heads.cut_attention import choose_given_bias, replace_module, require_replaceable
from mtl.heads.families import family_of
from mtl.heads.family_table import Family
from mtl.heads.given_models import changeable, require_finite_weights, require_plain, require_weights
from mtl.probes.sites import Site
from mtl.tasks.in_words import counted

BLOCK = "block"
"""The start whose components belong to one head each."""
_TRIAL_STEPS = 40
"""Steps after which two starts are compared; only the better one continues."""
_PENALTY = 0.03
"""The penalty on the factors' squares, as a share of the squared error."""
_LEAST_PENALTY = 1e-12
"""Added to the penalty, as a share of the Gram matrix's mean diagonal: it makes the solution unique."""
_FIRST_PUSH, _LEAST_PUSH, _LARGEST_PUSH = 0.5, 0.3, 1.0
"""How far factors are extrapolated before a step, as a share of the last step: first, least and most."""


class Factors(NamedTuple):
    """A CP decomposition: component r has a query vector, a key vector and a weight for each head."""

    queries: Float[Tensor, "input component"]
    keys: Float[Tensor, "input component"]
    mixing: Float[Tensor, "head component"]


@dataclass(frozen=True)
class Decomposition:
    """Shared components of the heads of one attention, and how well they reproduce the heads' products."""

    factors: Factors
    error: float
    """Relative error: the Frobenius norm of the residual over that of the tensor."""
    truncated: float
    """The error of the block start, the best decomposition whose components belong to one head each."""
    history: tuple[float, ...]
    """The error of the best start, and the error after each of its steps."""
    start: str
    """Which start was the best one: `block`, `noise 1`, `random 1`, `noise 2`, ..."""


def decompose(
    queries: Float[Tensor, "head input size"],
    keys: Float[Tensor, "head input size"],
    components: int,
    *,
    starts: int = 3,
    steps: int = 200,
    seed: int = 0,
) -> Decomposition:
    """The CP decomposition of the stack of `queries[h] keys[h]^T`, by alternating least squares.

    The first start (`block`) takes the largest singular values of all heads' products, each a component of
    its head alone. That is exact for heads x size components. The others are, by turns, this start with
    noise, and random numbers; after 40 steps only the best one continues. Steps are extrapolated (Mitchell et
    al. 2020); one that would raise the error is repeated without extrapolation. No step raises the error.

    A small penalty on the squares of all factors, which shrinks with the error, keeps components from growing
    in opposite directions that cancel each other without lowering the error.

    Args:
        queries: W_Q of each head.
        keys: W_K of each head.
        components: their number, from 1 to heads x size.
        starts: how many starts are compared; 1: only the first.
        steps: steps of the best start; 0 gives the best of the starts as they are.
        seed: seed of the noise and the random numbers.
    """
    with torch.no_grad():
        problem = _Problem(queries.detach().double(), keys.detach().double())
        heads, _, size = queries.shape
        block = problem.block_start(components)
        generator = torch.Generator(device=queries.device).manual_seed(seed)
        best = _Descent(problem, block, BLOCK)
        [truncated] = best.history
        if components == heads * size or problem.square == 0:  # nothing is missing
            return best.result(truncated)
        for number in range(1, starts):
            kind = ("noise", "random")[(number - 1) % 2]
            name = f"{kind} {(number + 1) // 2}"
            candidate = _Descent(problem, _drawn(block, kind, generator), name)
            best.run(min(_TRIAL_STEPS, steps))
            candidate.run(min(_TRIAL_STEPS, steps))
            best = min(best, candidate, key=lambda descent: descent.history[-1])
        best.run(steps)
        return best.result(truncated)


class _Problem:
    """The tensor, represented by the matrices of its heads."""

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.per_head = (queries, keys)
        self.heads, _, self.size = queries.shape
        self.queries, self.keys = (matrix.transpose(0, 1).flatten(1) for matrix in (queries, keys))
        grams = (matrix.transpose(1, 2) @ matrix for matrix in (queries, keys))
        self.square = (next(grams) * next(grams)).sum()

    def block_start(self, components: int) -> Factors:
        """The largest singular values of the heads' products, each a component of its head alone."""
        (left, narrow_left), (right, narrow_right) = map(torch.linalg.qr, self.per_head)
        u, values, vh = torch.linalg.svd(narrow_left @ narrow_right.transpose(1, 2))
        largest = values.flatten().topk(components).indices.sort().values
        head, place = largest // values.shape[1], largest % values.shape[1]
        root = values[head, place].sqrt()
        mixing = values.new_zeros(self.heads, components)
        mixing[head, torch.arange(components, device=head.device)] = 1
        return Factors(
            (left @ u)[head, :, place].T * root, (right @ vh.transpose(1, 2))[head, :, place].T * root, mixing
        )

    def step(self, factors: Factors, penalty: float) -> tuple[Factors, float]:
        """One round of least squares in queries, keys and mixing; returns the factors and their error.

        `penalty` is the weight of the sum of squares of all factors.
        """
        queries, keys, mixing = factors
        weights = mixing.repeat_interleave(self.size, 0)
        weighed = mixing.T @ mixing
        right = self.queries @ ((self.keys.T @ keys) * weights)
        queries = _solved((keys.T @ keys) * weighed, right, penalty)
        of_queries = self.queries.T @ queries
        right = self.keys @ (of_queries * weights)
        keys = _solved((queries.T @ queries) * weighed, right, penalty)
        gram = (queries.T @ queries) * (keys.T @ keys)
        right = (of_queries * (self.keys.T @ keys)).unflatten(0, (self.heads, self.size)).sum(1)
        mixing = _solved(gram, right, penalty)
        return _even(Factors(queries, keys, mixing)), self._error(gram, right, mixing)

    def error(self, factors: Factors) -> float:
        """The relative error of a decomposition."""
        queries, keys, mixing = factors
        both = (self.queries.T @ queries) * (self.keys.T @ keys)
        right = both.unflatten(0, (self.heads, self.size)).sum(1)
        return self._error((queries.T @ queries) * (keys.T @ keys), right, mixing)

    def _error(self, gram: Tensor, right: Tensor, mixing: Tensor) -> float:
        missing = self.square - 2 * (right * mixing).sum() + (gram * (mixing.T @ mixing)).sum()
        return 0.0 if self.square == 0 else float((missing / self.square).clamp(min=0).sqrt())


class _Descent:
    """Alternating least squares from one start."""

    def __init__(self, problem: _Problem, start: Factors, name: str) -> None:
        self.problem, self.factors, self.name = problem, _even(start), name
        self.history = [problem.error(start)]
        self.before: Factors | None = None
        self.push, self.share = _FIRST_PUSH, _PENALTY

    def run(self, steps: int) -> None:
        """Step until `steps` have been made in all."""
        while len(self.history) <= steps:
            self._step()

    def _step(self) -> None:
        last = self.history[-1]
        squares = sum(float(factor.square().sum()) for factor in self.factors)
        penalty = self.share * last**2 * float(self.problem.square) / squares
        pushed = self._pushed()
        reached, error = self.problem.step(pushed or self.factors, penalty)
        if pushed is not None and error > last:
            self.push = max(self.push / 2, _LEAST_PUSH)
            reached, error = self.problem.step(self.factors, penalty)
        else:
            self.push = min(self.push * 1.1, _LARGEST_PUSH)
        if error > last:  # because of the penalty or of rounding
            self.share /= 2
            self.before = None
            self.history.append(last)
            return
        self.before, self.factors = self.factors, reached
        self.history.append(error)

    def _pushed(self) -> Factors | None:
        """The factors, extrapolated in the direction of the last step; `None` if there was none."""
        if self.before is None:
            return None
        both = zip(self.factors, self.before, strict=True)
        return Factors(*(now + self.push * (now - old) for now, old in both))

    def result(self, truncated: float) -> Decomposition:
        """The decomposition, with each component's largest weight 1 and its vectors equally long."""
        queries, keys, mixing = self.factors
        largest = mixing.gather(0, mixing.abs().argmax(0, keepdim=True))[0]
        scale = torch.where(largest == 0, 1.0, largest)
        factors = Factors(queries * scale, keys, mixing / scale)
        lengths = [vectors.norm(dim=0).clamp(min=torch.finfo(keys.dtype).tiny) for vectors in factors[:2]]
        ratio = (lengths[0] / lengths[1]).sqrt()
        usable = (factors.queries.norm(dim=0) > 0) & (factors.keys.norm(dim=0) > 0)
        ratio = torch.where(usable, ratio, 1.0)
        balanced = Factors(factors.queries / ratio, factors.keys * ratio, factors.mixing)
        return Decomposition(balanced, self.history[-1], truncated, tuple(self.history), self.name)


def _solved(gram: Tensor, right: Tensor, penalty: float) -> Tensor:
    """The rows x that solve x (gram + weight I) = right."""
    weight = penalty + _LEAST_PENALTY * gram.diagonal().mean()
    damped = gram + weight * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(damped, right.T).T


def _even(factors: Factors) -> Factors:
    """The same decomposition with the three vectors of a component equally long."""
    tiny = torch.finfo(factors.queries.dtype).tiny
    lengths = [factor.norm(dim=0).clamp(min=tiny) for factor in factors]
    mean = (lengths[0] * lengths[1] * lengths[2]) ** (1 / 3)
    return Factors(*(factor * (mean / length) for factor, length in zip(factors, lengths, strict=True)))


def _drawn(block: Factors, kind: str, generator: torch.Generator) -> Factors:
    """A start with random numbers, or the block start with noise of a tenth of its size."""
    drawn = []
    for factor in block:
        noise = torch.randn(factor.shape, generator=generator, dtype=factor.dtype, device=factor.device)
        size = factor.square().mean().sqrt()
        drawn.append(factor + 0.1 * size * noise if kind == "noise" else size * noise)
    return Factors(*drawn)


_BLOCKS = "blocks"
"""What the configuration records where mixing matrices are not learned and keep their blocks."""
_DEVIATION = 0.2
"""The standard deviation of random mixing vectors."""


@dataclass(frozen=True)
class SharedAttention:
    """An attention whose heads share components, and the decomposition that they come from."""

    sites: tuple[Site, ...]
    """The layer that uses it, or all layers that share it (ALBERT)."""
    heads: tuple[int, ...]
    """The numbers of its heads, in the order of the rows of the mixing matrix."""
    decomposition: Decomposition
    seconds: float
    """Wall-clock time of the decomposition."""


def collaborate(
    model: PreTrainedModel,
    dim: int,
    *,
    starts: int = 3,
    steps: int = 200,
    seed: int = 0,
    advance: Callable[[SharedAttention], None] = lambda attention: None,
    family: Family | str | None = None,
) -> list[SharedAttention]:
    """Let the heads of each layer share `dim` query and key components, in place.

    The stack of the heads' W_Q W_K^T is decomposed by alternating least squares (`decompose`). The biases of
    queries become the heads' content biases v_h = W_K b_Q; those of keys cancel in the softmax. With
    heads x head size components the model's output does not change; with fewer it is approximated, and the
    model should be trained further. `model.config.collaborative_components` records the components per
    layer; `load_pruned` rebuilds the model from it. Existing optimisers hold the old parameters: make new
    ones.

    Args:
        model: any `transformers` model of a family whose scores are products of queries and keys alone, or
            have a bias by position added (BERT, RoBERTa, ELECTRA, DistilBERT, ALBERT, MPNet and others).
        dim: number of components, from 1 to heads x head size. Layers that have lost heads get at most the
            number at which sharing is exact.
        starts: number of starts of the decomposition; the best one is used.
        steps: steps of alternating least squares from the best start.
        seed: seed of the starts.
        advance: called after every layer.
        family: as in `prune_heads`.

    Returns:
        One entry per attention module, with its decomposition.

    Raises:
        InputError: the heads of the family cannot share (the message says why), the heads of the model share
            already, queries or keys have hooks, or `dim`, `starts` or `steps` is out of range.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
        ... )
        >>> model = BertModel(config)
        >>> before = model.num_parameters()
        >>> shared = collaborate(model, 16, steps=20)
        >>> len(shared), 0 < shared[0].decomposition.error < 1
        (2, True)
        >>> before - model.num_parameters()  # 2 x 2 x (32 x 32 + 32) less 2 x (2 x 32 x 16 + 4 x 16 + 4 x 32)
        1792
        >>> model.config.collaborative_components
        {0: 16, 1: 16}
    """
    model, family = changeable(model, "collaborate", family)
    dim = whole_number(dim, "dim")
    starts, steps = whole_number(starts, "starts", 1), whole_number(steps, "steps", 0)
    seed = seed_of(seed)
    function_of(advance, "advance")
    check_components(model, family, dim)
    require_weights(model, "collaborate")
    found = attentions(model, family)
    require_plain(model, family, found, "made to share components")
    require_finite_weights(found, "collaborate")
    for attention, _ in _distinct(found):
        projections = [attention.module.get_submodule(name) for name in (family.query, family.key)]
        require_replaceable(model, [attention.module], projections, "collaborate")
    give_own_configuration(model)
    made = []
    for attention, indices in _distinct(found):
        begun = time.perf_counter()
        factors = query_key(family, attention)
        components = min(dim, len(attention.remaining) * attention.size)
        result = decompose(*factors, components, starts=starts, steps=steps, seed=seed)
        content = torch.einsum("his,hs->hi", factors.keys, query_bias(family, attention)).detach()
        replacement = _put(model, family, attention, components)
        _fill(replacement, result.factors)
        replacement.content.data.copy_(content)
        shared = SharedAttention(
            tuple(found[index].site for index in indices),
            attention.remaining,
            result,
            time.perf_counter() - begun,
        )
        _record(model, family, dict.fromkeys(indices, components))
        made.append(shared)
        advance(shared)
    return made


@torch.no_grad()
def start_collaborative(
    model: PreTrainedModel,
    dim: int | Mapping[str, int],
    deviation: float,
    *,
    learned: bool = True,
    start: str = "blocks",
) -> None:
    """Let the heads of each layer of a new model share `dim` random components, in place.

    By default, each component starts in one head: the mixing matrix has ones in blocks and zeros elsewhere,
    which training fills. With heads x head size components the model starts, in distribution, as one whose
    heads share nothing; with fewer, each head starts with an equal part of them. The other starts are those
    of the code of Cordonnier et al. (2020). Ones make all heads of a layer attend alike at first, with scores
    that are sums over all D components and grow with D; the values of heads still differ. The heads' content
    biases start at zero, as biases of queries do.

    Args:
        model: of a family that `collaborate` takes; only the weights of queries and keys change.
        dim: components, from 1 to heads x head size, or a number for each kind of attention whose heads are
            to share (`Site.attention`); heads of other kinds stay as they are.
        deviation: the standard deviation of the weights.
        learned: whether the mixing matrix is learned. If not, each head keeps the components that it starts
            with: heads are concatenated, each of `dim` / heads query and key columns.
            `model.config.collaborative_mixing` records it.
        start: the mixing matrix at the start: `blocks`, `ones`, or `normal` (of deviation 0.2, which their
            code calls uniform).

    Raises:
        InputError: as in `collaborate`; its message calls `dim` "components".
    """
    family = family_of(model)
    found = attentions(model, family)
    kinds = dict.fromkeys(attention.site.attention for attention in found)
    by_kind = dim if isinstance(dim, Mapping) else dict.fromkeys(kinds, dim)
    if odd := next((kind for kind in by_kind if kind not in kinds), None):
        raise InputError(
            f"components.{odd}: the model has no attention of kind {odd}: it has {', '.join(kinds)}"
        )
    for components in by_kind.values():
        check_components(model, family, components, "components")
    if not learned:
        model.config.collaborative_mixing = _BLOCKS
    for attention, indices in _distinct(found):
        if attention.site.attention not in by_kind:
            continue
        components = by_kind[attention.site.attention]
        replacement = _put(model, family, attention, components)
        for weight in replacement.shared():
            weight.normal_(std=deviation)
        if start == "ones":
            replacement.mixing.fill_(1)
        elif start == "normal":
            replacement.mixing.normal_(std=_DEVIATION)
        else:
            heads = len(attention.remaining)
            owner = torch.arange(components, device=replacement.mixing.device) * heads // components
            replacement.mixing.copy_(torch.arange(heads, device=owner.device)[:, None] == owner)
        replacement.mixing.requires_grad_(learned and replacement.mixing.requires_grad)
        _record(model, family, dict.fromkeys(indices, components))


def start_as_configured(model: PreTrainedModel, settings: Any) -> None:
    """`start_collaborative` by the settings of a translation model (its `components`, `mixing` and `width`),
    if these ask for components."""
    if settings.components is not None:
        start_collaborative(
            model,
            settings.components,
            settings.width**-0.5,
            learned=settings.mixing != "blocks",
            start="blocks" if settings.mixing == "learned" else settings.mixing,
        )


def share_of_encoder(encoder: PreTrainedModel, components: int) -> str:
    """`collaborate` with its defaults, for a training with the setting `components`; returns a line about it.

    The random state stays as it was, so that training goes as with an encoder that was factorised before.
    """
    check_components(encoder, family_of(encoder), components, "components")
    before = query_key_parameters(encoder)
    with torch.random.fork_rng([]):
        shared = collaborate(encoder, components)
    error = sum(part.decomposition.error for part in shared) / len(shared)
    return (
        f"components={components}: the encoder's heads share query and key components; error of the "
        f"factorisation {error:.4f} (mean over layers), query and key parameters {before:,} -> "
        f"{query_key_parameters(encoder):,}"
    )


def require_collaborative(model: PreTrainedModel, family: Family) -> None:
    """Raise `InputError`, with the reason, if the heads of the model cannot be made to share components."""
    name = type(model).__name__
    if reason := family.not_shareable_because:
        raise InputError(f"the heads of {name} cannot share query and key components: {reason}")
    if getattr(model.config, "is_decoder", False):
        raise InputError(
            f"the heads of {name} cannot share query and key components: it is set up as a decoder "
            "(is_decoder in its config.json), whose cache has keys of a head's size"
        )
    if recorded_components(model.config, family):
        raise InputError(
            f"the heads of {name} share query and key components already: use the model that it was made from"
        )


def check_components(model: PreTrainedModel, family: Family, dim: int, name: str = "dim") -> None:
    """Raise `InputError` if the heads of the model cannot share `dim` components, the setting `name`."""
    require_collaborative(model, family)
    exact = max(len(attention.remaining) * attention.size for attention in attentions(model, family))
    if not 1 <= dim <= exact:
        raise InputError(
            f"{name}={dim}: use 1 to {counted(exact, 'component')}, heads x head size, at which sharing is "
            "exact"
        )


def put_components(model: PreTrainedModel, family: Family, components: Mapping[int, int]) -> None:
    """Make sites collaborative, each with its number of components; weights are to be loaded."""
    if not components:
        return
    for number in components.values():
        check_components(model, family, number, "components")
    for attention, indices in _distinct(attentions(model, family)):
        if indices[0] in components:
            _put(model, family, attention, components[indices[0]])
    _record(model, family, components)


def recorded_components(config: PretrainedConfig, family: Family | None = None) -> dict[int, int]:
    """The number of components that heads share, by collaborative site (`collaborate`)."""
    recorded = recorded_by_site(config, family, "collaborative_components")
    return {
        site: whole_number(number, f"collaborative_components[{site}]") for site, number in recorded.items()
    }


def _distinct(found: list[Attention]) -> list[tuple[Attention, list[int]]]:
    """Each attention module that has heads, once, with the indices of the sites that use it."""
    served: dict[int, list[int]] = {}
    for index, attention in enumerate(found):
        if attention.remaining:
            served.setdefault(id(attention.module), []).append(index)
    return [(found[indices[0]], indices) for indices in served.values()]


def _put(
    model: PreTrainedModel, family: Family, attention: Attention, components: int
) -> CollaborativeAttention:
    module = attention.module
    replacement = CollaborativeAttention(
        module,
        (family.query, family.key, family.value),
        components,
        len(attention.remaining),
        attention.size,
        attention.output_path,
        family.normed_inside,
        attention.record,
    )
    if getattr(model.config, "collaborative_mixing", None) == _BLOCKS:
        replacement.not_learned = ("mixing",)
    replace_module(model, module, replacement)
    if hasattr(module, "bias_heads"):
        # The module has lost heads: from the bias of all heads it takes the rows of its own.
        replacement.register_buffer("bias_heads", module.get_buffer("bias_heads"), persistent=False)
        choose_given_bias(replacement)
    return replacement


@torch.no_grad()
def _fill(attention: CollaborativeAttention, factors: Factors) -> None:
    queries, keys = attention.shared()
    queries.copy_(factors.queries)
    keys.copy_(factors.keys)
    attention.mixing.copy_(factors.mixing)


def _record(model: PreTrainedModel, family: Family, components: Mapping[int, int]) -> None:
    before = recorded_components(model.config, family)
    record(model, family, "collaborative_components", {**before, **components})
