"""What all families of models share."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field

from lemma.spec.base import Letter, Spec

Size = Annotated[int, Field(ge=1)]


def check_heads(width_name: str, width: int, heads_name: str, heads: int) -> None:
    """Refuse heads that do not divide the width they share, naming the nearest widths that would do."""
    if width % heads:
        below = width // heads * heads
        near = ", ".join(str(fitting) for fitting in (below, below + heads) if fitting)
        raise ValueError(f"{heads_name} = {heads} does not divide {width_name} = {width}. Nearest widths: {near}.")


class Family(Spec):
    """What all families share."""

    vocabulary: Annotated[Size, Letter("V")] = 256
    """Number of different tokens; training takes it from the tokenizer."""

    def sizes(self) -> dict[str, int]:
        """The sizes by their textbook letters.

        >>> from lemma.spec import FeedForward
        >>> FeedForward().sizes()
        {'V': 256, 'd': 64, 'd_h': 256, 'N': 8}
        """
        return {letter: getattr(self, name) for letter, name in type(self).letters().items()}

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes, given by their letters.

        >>> from lemma.spec import FeedForward
        >>> FeedForward().at({"d": 8}).width
        8
        """
        return self.replace(**sizes)
