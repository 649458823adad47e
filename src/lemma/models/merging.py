"""Merging a model's attention matrices: the same outputs with one matrix per head instead of two (B6, C8)."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lemma.errors import SpecError, describe_unknown
from lemma.layers.attention import Attention
from lemma.models.base import LanguageModel, count_parameters, evaluating
from lemma.models.decoder import DecoderModel
from lemma.report.result import Block, Result, Text
from lemma.spec.models import Decoder

Pair = Literal["key_query", "value_output"]
PAIRS: tuple[Pair, ...] = ("key_query", "value_output")


@dataclass(frozen=True)
class MergeReport(Result):
    """The effect of merging on a model's size and its cache."""

    json_names = ("pairs", "parameters", "cache")

    spec: Decoder
    pairs: tuple[Pair, ...]
    parameters: tuple[int, int]  # before and after
    cache: tuple[int, int]  # numbers per token, before and after

    @property
    def title(self) -> str:
        """Line that names the merged pairs of matrices."""
        return f"merged: {', '.join(pair.replace('_', '–') for pair in self.pairs)}; the outputs are the same"

    def blocks(self) -> Iterable[Block]:
        """Yield the report as one text: the sizes before and after, and a sentence for each merged pair."""
        lines = [
            self.title,
            f"parameters  {_format_change(*self.parameters)}",
            f"cache       {_format_change(*self.cache)} numbers per token, inputs instead of what was merged",
            *map(self._compare_head, self.pairs),
        ]
        yield Text("\n".join(lines))

    def _compare_head(self, pair: Pair) -> str:
        """Return a sentence that compares one head's number of weights before and after merging (problem B7)."""
        spec, width, heads = self.spec, self.spec.width, self.spec.heads
        groups = spec.key_value_heads or heads
        inner = (spec.query_width if pair == "key_query" else spec.value_width or spec.query_width) // heads
        before = inner * width * (heads + groups) // heads
        word = {1: "more", 0: "as many", -1: "fewer"}[(width**2 > before) - (width**2 < before)]
        formula, equal = ("2IJ", "J/2") if groups == heads else ("(1 + h_kv/h)IJ", "J/(1 + h_kv/h)")
        return (
            f"{pair.replace('_', '–')}: a head has J² = {width**2:,} weights against {formula} = {before:,} "
            f"(J = {width}, I = {inner}): {word}; equal at I = {equal} = {width * heads / (heads + groups):g}"
        )


def _format_change(before: int, after: int) -> str:
    """Return text such as "100 → 80 (-20.0%)" for a number before and after merging."""
    return f"{before:,} → {after:,} ({(after - before) / before:+.1%})" if before else f"{before:,} → {after:,}"


class MergedModel(DecoderModel):
    """A decoder with merged matrices and a report of the effect."""

    merging: MergeReport


def merge(model: LanguageModel, pairs: Pair | Collection[Pair] = PAIRS) -> MergedModel:
    """Return a copy of a model whose key–query and value–output maps are merged, head by head, with equal outputs.

    Its `merging` reports the effect on the parameters and on the cache.

    With W_Q x + b the query and W_K y + c the key, their product is x·(W_Qᵀ W_K) y + (W_Kᵀ b)·y and what is the same
    for every key, which the softmax does not see. Values W_V y + b under the output map W_O become W_O W_V y; the
    weights of attention add up to one, so that W_O b joins the output's own bias.
    """
    pairs = (pairs,) if isinstance(pairs, str) else tuple(pairs)
    spec = _check_mergeable(model, pairs)
    changed: dict[str, Any] = dict.fromkeys(pairs, "merged")
    if "value_output" in pairs and spec.has_bias("query_key_value") and not spec.has_bias("attention_output"):
        changed["attention_output_bias"] = True  # where the values' bias goes
    dropout = next(module.dropout for module in model.modules() if isinstance(module, Attention))
    with torch.random.fork_rng(devices=()):  # its initial weights are not used
        merged = MergedModel(spec.replace(**changed), dropout).to(next(model.parameters()))
    weights = model.state_dict()
    for path, module in model.named_modules():
        if isinstance(module, Attention):
            weights |= _merge_weights(path, module, weights, pairs)
    merged.load_state_dict({name: weights[name] for name in merged.state_dict()})
    sizes = (count_parameters(model), count_parameters(merged))
    merged.merging = MergeReport(spec, pairs, sizes, (_count_cached(model), _count_cached(merged)))
    return merged.train(model.training)


def _check_mergeable(model: LanguageModel, pairs: Collection[str]) -> Decoder:
    """Return the spec of a decoder if its `pairs` of matrices can be merged; otherwise raise a SpecError."""
    spec = getattr(model, "spec", None)
    if spec is None:
        raise SpecError(f"merge: expected a model of Lemma's, got a {type(model).__name__}.")
    if not isinstance(model, DecoderModel) or not isinstance(spec, Decoder):
        raise SpecError(f"merge: a {spec.family} model has no multi-head attention to merge. It works on a decoder.")
    if not pairs:
        raise SpecError(f"merge: no pair is named. Choices: {', '.join(PAIRS)}.")
    for pair in pairs:
        if pair not in PAIRS:
            raise SpecError(describe_unknown("merge: pair", pair, PAIRS))
    if merged := [pair for pair in pairs if getattr(spec, pair) == "merged"]:
        raise SpecError(f"merge: {merged[0]} is merged in this model already.")
    if "key_query" in pairs and spec.positions.rotates:
        raise SpecError(
            f"merge: key_query cannot be merged with {spec.positions.kind} positions. The rotation acts between the "
            "two matrices and differs from pair to pair of tokens: W_Qᵀ R W_K has another value at every distance. Use "
            "pairs=['value_output'], or train with positions=alibi."
        )
    if "key_query" in pairs and spec.query_key_norm:
        raise SpecError(
            "merge: key_query cannot be merged with query_key_norm, since the norms act between the two matrices. Use "
            "pairs=['value_output']."
        )
    return spec


def _merge_weights(
    path: str, attention: Attention, weights: dict[str, Tensor], pairs: Collection[str]
) -> dict[str, Float[Tensor, "..."]]:
    """Return the merged weights of the attention module at `path`, by their names in the model.

    Args:
        weights: state dict of the model.
        pairs: which of "key_query" and "value_output" to merge.
    """
    heads, kv_heads = attention.heads, attention.kv_heads
    kinds, widths = attention.projection.split("_"), attention.shape.projection_widths
    parts = _append_bias(weights, f"{path}.{attention.projection}").split([widths[kind] for kind in kinds])
    maps = {
        kind: part.unflatten(0, (heads if kind == "query" else kv_heads, -1))
        for kind, part in zip(kinds, parts, strict=True)
    }
    output = _append_bias(weights, f"{path}.output")
    if "key_query" in pairs:  # W_Kᵀ [W_Q, b] of each head, by which the inputs are multiplied
        keys = maps.pop("key").repeat_interleave(heads // kv_heads, dim=0)
        maps["query"] = keys[:, :, :-1].mT @ maps["query"]
    if "value_output" in pairs:  # [W_O W_V of each head side by side, Σ W_O b_V + b_O]
        values = maps.pop("value").repeat_interleave(heads // kv_heads, dim=0)
        products = output[:, :-1].unflatten(1, (heads, -1)).transpose(0, 1) @ values  # heads out columns
        joined = products[:, :, :-1].transpose(0, 1).flatten(1)
        output = torch.cat([joined, (products[:, :, -1].sum(0) + output[:, -1])[:, None]], dim=1)
    projection = torch.cat([part.flatten(0, 1) for part in maps.values()])
    merged: dict[str, Tensor] = {}
    for name, table in {f"{path}.{'_'.join(maps)}": projection, f"{path}.output": output}.items():
        merged |= {f"{name}.weight": table[:, :-1].contiguous(), f"{name}.bias": table[:, -1].contiguous()}
    return {name: tensor.to(weights[f"{path}.output.weight"]) for name, tensor in merged.items()}


def _append_bias(weights: dict[str, Tensor], name: str) -> Float[Tensor, "rows columns"]:
    """Return the matrix `name`.weight of a state dict in float64, with its bias (or zeros) as a last column."""
    table = weights[f"{name}.weight"].double()
    bias = weights.get(f"{name}.bias")
    return torch.cat([table, table.new_zeros(len(table), 1) if bias is None else bias.double()[:, None]], dim=1)


def _count_cached(model: LanguageModel) -> int:
    """Return how many numbers a model caches per token, counted on the state after one token."""
    token = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    with torch.no_grad(), evaluating(model):
        tensors = model(token)[1].tensors()
    return sum(tensor.numel() for name, tensor in tensors.items() if name != "seen")
