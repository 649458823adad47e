"""A classifier: any body that reads text, and a head that says which class it belongs to."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from lemma.errors import unknown
from lemma.spec.base import Letter, Spec
from lemma.spec.model import Attentive, Decoder, FeedForward, Gru, Lstm, Rnn, TableA5
from lemma.spec.transformer import Encoder, EncoderDecoder

BodySpec = FeedForward | Attentive | Rnn | Lstm | Gru | Decoder | TableA5 | Encoder | EncoderDecoder
BODIES: dict[str, type[BodySpec]] = {
    str(body.model_fields["family"].default): body
    for body in (FeedForward, Attentive, Rnn, Lstm, Gru, Decoder, TableA5, Encoder, EncoderDecoder)
}
POOLS = {"feed-forward": "mean", "attentive": "mean", "encoder": "first", "encoder-decoder": "first"}
"""What is read of a body unless told otherwise; of all others the last token, the only one that has seen all."""


def _from_name(value: Any) -> Any:
    if isinstance(value, dict) and "kind" in value:  # as in body=lstm body.hidden=64
        value = {"family": value["kind"], **{word: inner for word, inner in value.items() if word != "kind"}}
    family = value if isinstance(value, str) else value.get("family") if isinstance(value, dict) else None
    if isinstance(family, str) and family not in BODIES:
        raise ValueError(unknown("body", family, BODIES))
    return {"family": value} if isinstance(value, str) else value


class Pooling(Spec):
    """What of a body's vectors is read."""

    pool: Literal["auto", "first", "last", "mean"] = "auto"
    """What of the body's vectors the head reads: that of the first or of the last token, or their mean.

    Auto is the first mark of an encoder, the mean of a window model's (a bag of its n-grams), else the last token.
    """


class Classifier(Pooling):
    """A body that reads a text, what is taken of the vectors it gives, and one linear map to the classes."""

    family: Literal["classifier"] = "classifier"
    classes: Annotated[int, Field(ge=2), Letter("K")] = 2
    """Number of classes; training takes it from the labels."""
    body: Annotated[BodySpec, Field(discriminator="family"), BeforeValidator(_from_name)] = Lstm()
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
        """The body's sizes by their letters, and the number of classes."""
        return {**self.body.sizes(), "K": self.classes}

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes, given by their letters: K is the classifier's, all others are the body's.

        >>> Classifier().at({"K": 3, "D": 8}).sizes()["D"]
        8
        """
        own = {letter: size for letter, size in sizes.items() if letter in type(self).letters()}
        others = {letter: size for letter, size in sizes.items() if letter not in own}
        return self.replace(**own, body=self.body.at(others).to_dict())
