"""Attention as one part with orthogonal choices: heads, widths, groups, order, source, merged or separate matrices."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lemma.parts.attend import attend, distances_of
from lemma.parts.positions import part_of
from lemma.spec import NoPositions, Positions

NOWHERE = NoPositions()
Stream = Float[Tensor, "batch time width"]
Memory = tuple[Float[Tensor, "..."], ...]
"""What attention keeps of the tokens read so far; time is the dimension before the last of each tensor.

Keys and values, side by side in one tensor where their shapes allow it; inputs in the place of what is merged.
"""


@dataclass(frozen=True)
class AttentionShape:
    """The choices of an attention part.

    Merged, the key–query map of each head is one matrix W^QK = W_Qᵀ W_K (problem B6) that meets the inputs themselves,
    and the value–output map one matrix W_V W_O (problem C8): without keys or values, inputs are kept in their place.
    """

    width: int
    heads: int = 1
    attention_width: int | None = None
    """The width of all heads' queries together; the stream's if unset."""
    value_width: int | None = None
    """The width of all heads' values together; that of the queries if unset."""
    key_value_heads: int | None = None
    """Heads of keys and values, each serving a group of query heads; one for each query head if unset."""
    causal: bool = True
    source_width: int | None = None
    """The width of what is attended to, if that is another stream than the one that asks."""
    key_query: Literal["separate", "merged"] = "separate"
    value_output: Literal["separate", "merged", "none"] = "separate"
    """None: the heads' values are the output, side by side, without an output map."""
    bias: bool = True
    positions: Positions = NOWHERE
    """What turns queries and keys, or biases scores; what is added to the embedding is not done here."""
    context: int = 0
    """Positions whose rotations are worked out beforehand."""

    @property
    def head_width(self) -> int:
        """The width of one head's queries and keys before any merging: I in √I."""
        return (self.attention_width or self.width) // self.heads

    @property
    def head_value_width(self) -> int:
        """The width of one head's values before any merging."""
        return (self.value_width or self.attention_width or self.width) // self.heads

    @property
    def groups(self) -> int:
        """The heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def inputs(self) -> int:
        """The width of what is attended to."""
        return self.source_width or self.width

    @property
    def widths(self) -> dict[str, int]:
        """What is projected, and how wide: queries, and keys and values unless they are merged away."""
        merged = self.key_query == "merged"
        widths = {"query": self.heads * (self.inputs if merged else self.head_width)}
        if not merged:
            widths["key"] = self.groups * self.head_width
        if self.value_output != "merged":
            widths["value"] = self.groups * self.head_value_width
        return widths


class Attention(nn.Module):
    """Multi-head attention through PyTorch's fused kernel.

    Each head: softmax(Q Kᵀ/√I) V, over the tokens up to its own if causal. The scale is that of the unmerged head, so
    that merging changes nothing.
    """

    query_key_value: nn.Linear

    def __init__(self, shape: AttentionShape, dropout: float = 0.0) -> None:
        super().__init__()
        refuse_impossible(shape)
        self.shape, self.dropout = shape, dropout
        self.heads, self.groups, self.causal = shape.heads, shape.groups, shape.causal
        self.scale = shape.head_width**-0.5
        self.crosses, self.merged = shape.source_width is not None, shape.key_query == "merged"
        self.packed = not self.crosses and _packs(shape)
        self.inward, self.inward_source = _parts_of(shape)
        for name in filter(None, (self.inward, self.inward_source)):
            width = shape.width if name == self.inward else shape.inputs
            self.add_module(name, nn.Linear(width, _joined_width(shape, name), bias=shape.bias))
        self.maps_out = shape.value_output != "none"
        if self.maps_out:
            inner = shape.inputs if shape.value_output == "merged" else shape.head_value_width
            self.output = nn.Linear(shape.heads * inner, shape.width, bias=shape.bias)
        places = shape.positions
        self.turns = part_of(places, "turns", shape.context, shape.head_width)
        self.biases = part_of(places, "biases", shape.context, shape.heads)

    def forward(
        self,
        stream: Stream,
        past: Memory | None = None,
        source: Float[Tensor, "batch known source_width"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Stream, Memory]:
        """Attend from every vector of the stream, to the past and itself or to the source; return what to remember.

        `mask` is true where a key may be seen, broadcast to (batch, heads, new, known). Attention to a source remembers
        that source: give it once, then only `past`.
        """
        if self.packed:
            queries, keys, values, memory = self._packed(stream, past)
        elif self.crosses:
            queries, keys, values, memory = self._across(stream, past, source)
        else:
            queries, keys, values, memory = self._within(stream, past)
        dropout = self.dropout if self.training else 0.0
        line = None if self.biases is None else self._line(queries.shape[2], keys.shape[2], keys.device)
        mixed = attend(queries, keys, values, self.scale, self.causal, mask, line, dropout, self.packed)
        joined = mixed.transpose(1, 2).flatten(2)
        return self.output(joined) if self.maps_out else joined, memory

    def _line(self, new: int, known: int, device: torch.device) -> Float[Tensor, "heads distances"]:
        """What positions add to the scores of each head, by distance."""
        assert self.biases is not None
        return self.biases(distances_of(new, known, device))

    def _packed(self, stream: Stream, past: Memory | None) -> tuple[Tensor, Tensor, Tensor, Memory]:
        """Queries, keys and values of one shape: keys and values are kept in one tensor."""
        batch, time, _ = stream.shape
        joined = self.query_key_value(stream).view(batch, time, 3, self.heads, -1).permute(0, 2, 3, 1, 4)
        memory = joined.narrow(1, 1, 2)
        if past is None:
            queries, keys, values = joined.unbind(1)  # one backward for all three
        else:
            memory = torch.cat([past[0], memory], dim=3)
            queries, (keys, values) = joined.select(1, 0), memory.unbind(1)
        return queries, keys, values, (memory,)

    def _within(self, stream: Stream, past: Memory | None) -> tuple[Tensor, Tensor, Tensor, Memory]:
        made = self._made(self.inward, stream)
        if self.turns is not None:
            start = past[0].shape[-2] if past else 0
            made = {name: made[name] if name == "value" else self.turns(made[name], start) for name in made}
        memory = _remembered(made, stream)
        if past is not None:
            memory = tuple(torch.cat([old, new], dim=-2) for old, new in zip(past, memory, strict=True))
        return made["query"], memory[0], memory[-1], memory

    def _across(
        self, stream: Stream, past: Memory | None, source: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Memory]:
        if source is not None:
            past = _remembered(self._made(self.inward_source, source), source)
        if past is None:
            raise ValueError("attention to a source needs the source, or what was remembered of it.")
        return self._made(self.inward, stream)["query"], past[0], past[-1], past

    def _made(self, name: str, vectors: Tensor) -> dict[str, Float[Tensor, "batch heads time head_width"]]:
        """Project vectors by the map of that name, and cut what comes out into its parts and heads."""
        if not name:
            return {}
        kinds = name.split("_")
        parts = getattr(self, name)(vectors).split([self.shape.widths[kind] for kind in kinds], dim=-1)
        heads = [self.heads if kind == "query" else self.groups for kind in kinds]
        return {
            kind: part.unflatten(-1, (number, -1)).transpose(1, 2)
            for kind, part, number in zip(kinds, parts, heads, strict=True)
        }


def _remembered(made: dict[str, Tensor], inputs: Tensor) -> Memory:
    """Keys and values; the inputs stand in for either, or once for both."""
    keys, values = made.get("key"), made.get("value")
    if keys is None and values is None:
        return (inputs[:, None],)
    return (inputs[:, None] if keys is None else keys, inputs[:, None] if values is None else values)


def _packs(shape: AttentionShape) -> bool:
    alike = set(shape.widths.values()) == {shape.heads * shape.head_width} and len(shape.widths) == 3
    return alike and not shape.positions.turning


def _parts_of(shape: AttentionShape) -> tuple[str, str]:
    """The names of the map of the stream and of that of the source: "query_key_value", or "query" and "key_value"."""
    kinds = list(shape.widths)
    return ("_".join(kinds), "") if shape.source_width is None else ("query", "_".join(kinds[1:]))


def _joined_width(shape: AttentionShape, name: str) -> int:
    return sum(shape.widths[kind] for kind in name.split("_"))


def refuse_impossible(shape: AttentionShape) -> None:
    """Refuse choices that exclude each other; a programmer's error, since specs say it in their own words first."""
    total, values = shape.attention_width or shape.width, shape.value_width or shape.attention_width or shape.width
    if total % shape.heads or values % shape.heads or shape.heads % shape.groups:
        raise ValueError(f"{shape.heads} heads must divide {total} and {values}, and {shape.groups} groups the heads.")
    kind = shape.positions.kind
    if shape.positions.turning and shape.key_query == "merged":
        raise ValueError(f"{kind} turns queries and keys, so key_query cannot be merged; use alibi or separate.")
    if (shape.positions.paired and shape.head_width % 2) or (shape.positions.turning and shape.source_width):
        raise ValueError(f"{kind} needs an even head width (got {shape.head_width}) and a single stream.")
    if shape.source_width is not None and (shape.causal or shape.positions.biasing):
        raise ValueError("attention to a source has no order: causal=False, and neither rotary nor alibi.")
