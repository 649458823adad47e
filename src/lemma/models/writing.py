"""The state of an encoder–decoder at work: what is remembered of its source and of what it has written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lemma.models.layers import Past
from lemma.parts import Memory, State, bytes_of

SIDES = ("target", "source")


@dataclass(frozen=True)
class Writing(State):
    """The tokens written so far, and what each layer keeps of them and of the source."""

    written: Int[Tensor, "batch written"]
    seen: Bool[Tensor, "batch 1 1 source_time"] | None
    """Which places of the source are there; all of them if unset."""
    source: Float[Tensor, "batch source_time width"] | None
    """The source's vectors, as long as no layer has made its keys and values of them."""
    layers: tuple[Past, ...] = ()

    @property
    def about(self) -> str:
        """What it is, in words."""
        return "the source and all tokens written so far"

    def tensors(self) -> dict[str, Tensor]:
        """The tokens, the source, and each layer's keys and values."""
        named = {"written": self.written, "seen": self.seen, "source": self.source}
        kept = {name: memory[part] for name, memory, part in self._parts()}
        return {name: tensor for name, tensor in named.items() if tensor is not None} | kept

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Writing":
        """Return a state of the same layers that holds these tensors."""
        layers = tuple(
            (_memory(tensors, number, 0, own), _memory(tensors, number, 1, across))
            for number, (own, across) in enumerate(self.layers)
        )
        return Writing(tensors["written"], tensors.get("seen"), tensors.get("source"), layers)

    def reordered(self, index: Int[Tensor, "rows"]) -> "Writing":
        """Return the rows in an order that leaves each with its own source, of which nothing is moved."""
        layers = tuple((tuple(one[index] for one in own or ()), across) for own, across in self.layers)
        return replace(self, written=self.written[index], layers=layers)

    def signature(self, row: int = 0) -> bytes:
        """The source and the tokens say it all."""
        source = self.layers[0][1] or () if self.source is None else (self.source,)
        whole = (self.written, *source) if self.seen is None else (self.written, *source, self.seen)
        return b"|".join(bytes_of(tensor[row]) for tensor in whole)

    def _parts(self) -> Iterator[tuple[str, Memory, int]]:
        for number, sides in enumerate(self.layers):
            for side, memory in zip(SIDES, sides, strict=True):
                for part in range(len(memory or ())):
                    yield f"layers.{number}.{side}.{part}", memory or (), part


def _memory(tensors: Mapping[str, Tensor], number: int, side: int, like: Memory | None) -> Memory:
    return tuple(tensors[f"layers.{number}.{SIDES[side]}.{part}"] for part in range(len(like or ())))
