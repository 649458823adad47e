"""What reads a text for something else: a body, and what is taken of the vectors that it gives."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from lemma.errors import unknown
from lemma.spec.base import Spec
from lemma.spec.model import Attentive, Decoder, FeedForward, Gru, Lstm, Rnn, TableA5
from lemma.spec.new_family import NEW_FAMILIES, NewFamily
from lemma.spec.open_choice import Open
from lemma.spec.transformer import Encoder, EncoderDecoder, Transformer
from lemma.spec.tree import Tree

_OURS = FeedForward | Attentive | Rnn | Lstm | Gru | Decoder | TableA5 | Encoder | EncoderDecoder | Tree
BodySpec = FeedForward | Attentive | Rnn | Lstm | Gru | Decoder | TableA5 | Encoder | EncoderDecoder | Tree | NewFamily
BODIES: dict[str, type[BodySpec]] = {
    str(body.model_fields["family"].default): body
    for body in (FeedForward, Attentive, Rnn, Lstm, Gru, Decoder, TableA5, Encoder, EncoderDecoder, Tree)
}
LONGEST = 256
"""Tokens that are read of a text where its body has no context of its own."""
POOLS = {"feed-forward": "mean", "attentive": "mean", "encoder": "first", "encoder-decoder": "first", "tree": "mean"}
"""What is read of a body unless told otherwise; of all others the last token, the only one that has seen all."""


def longest(body: BodySpec) -> int:
    """The most tokens of a text that a body reads: its context, where it is a Transformer's."""
    if isinstance(body, NewFamily):
        return body.longest or LONGEST
    bounded = isinstance(body, Transformer) or body.family == "decoder"
    return getattr(body, "context", LONGEST) if bounded else LONGEST


def from_name(value: Any) -> Any:
    """Let a body be given by its name alone."""
    if isinstance(value, dict) and "kind" in value:  # as in body=lstm body.hidden=64
        value = {"family": value["kind"], **{word: inner for word, inner in value.items() if word != "kind"}}
    family = value if isinstance(value, str) else value.get("family") if isinstance(value, dict) else None
    if isinstance(family, str) and family not in BODIES and not NEW_FAMILIES.brings(family):
        raise ValueError(unknown("body", family, [*BODIES, *NEW_FAMILIES.others()]))
    return {"family": value} if isinstance(value, str) else value


AnyBody = Annotated[
    BodySpec, Open(Annotated[_OURS, Field(discriminator="family")], NEW_FAMILIES), BeforeValidator(from_name)
]


class Pooling(Spec):
    """What of a body's vectors is read."""

    pool: Literal["auto", "first", "last", "mean"] = "auto"
    """What of the body's vectors the head reads: that of the first or of the last token, or their mean.

    Auto is the first mark of an encoder, the mean of a window model's (a bag of its n-grams) and of a tree's, else the
    last token.
    """


class Reading(Pooling):
    """A model that reads a text by a body: its vocabulary and its sizes are the body's, and its own beside them."""

    body: AnyBody = Lstm()
    """What reads the text: a language model without its output layer, or an encoder."""

    @property
    def vocabulary(self) -> int:
        """The body's."""
        return self.body.vocabulary

    @property
    def pooling(self) -> str:
        """What is read of this body."""
        return POOLS.get(self.body.family, "last") if self.pool == "auto" else self.pool

    def sized(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy of the sizes that the data have; the vocabulary is the body's."""
        own = {word: size for word, size in sizes.items() if word != "vocabulary"}
        return self.replace(
            **own, body=self.body.replace(vocabulary=sizes.get("vocabulary", self.vocabulary)).to_dict()
        )

    def sizes(self) -> dict[str, int]:
        """The body's sizes by their letters, and the model's own."""
        own = {letter: getattr(self, name) for letter, name in type(self).letters().items()}
        return {**self.body.sizes(), **own}

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes, given by their letters: those that are not the model's own are the body's.

        >>> from lemma.spec import Classifier
        >>> Classifier().at({"K": 3, "D": 8}).sizes()["D"]
        8
        """
        own = {letter: size for letter, size in sizes.items() if letter in type(self).letters()}
        others = {letter: size for letter, size in sizes.items() if letter not in own}
        return self.replace(**own, body=self.body.at(others).to_dict())
