"""How many tokens of a text are read."""

from lemma.spec import BodySpec, Transformer

LONGEST = 256
"""Tokens that are read of a text where its body has no context of its own."""


def longest(body: BodySpec) -> int:
    """The most tokens of a text that a body reads: its context, where it is a Transformer's."""
    bounded = isinstance(body, Transformer) or body.family == "decoder"
    return getattr(body, "context", LONGEST) if bounded else LONGEST
