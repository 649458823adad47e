"""Translation from text to text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from lemma.data import Tokenizer
from lemma.errors import InputError
from lemma.generation.beam import Beam, longest_source, translate
from lemma.generation.hypotheses import Translation
from lemma.models import EncoderDecoderModel
from lemma.spec import MARKS


@dataclass(frozen=True)
class Translated:
    """A text and what the model makes of it."""

    source: str
    text: str
    score: float
    """Σ log p of its tokens, in nats."""
    normalised: float
    """The score over length^length_penalty, by which translations were compared."""
    tokens: tuple[int, ...]
    finished: bool
    """Whether the model has ended it, and not the context."""
    source_tokens: int
    """Tokens of the source."""
    read_tokens: int
    """Those of them that the model has read: its context may be shorter."""
    left_out: int = 0
    """Characters of the source that the tokenizer does not know."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "tokens": list(self.tokens), "remark": self.remark}

    @property
    def remark(self) -> str:
        """What is to be known about it, in one line; empty if there is nothing."""
        cut = self.source_tokens - self.read_tokens
        characters = "character" if self.left_out == 1 else "characters"
        remarks = [
            f"{self.left_out} {characters} of the source left out: the tokenizer does not know them"
            if self.left_out
            else "",
            f"the source has {self.source_tokens} tokens, of which only the first {self.read_tokens} were read: "
            "the model's context has no room for more"
            if cut
            else "",
            "" if self.finished else "the translation was cut off for want of room",
        ]
        return "; ".join(filter(None, remarks))

    def __str__(self) -> str:
        return f"{self.text}\n{f'({self.remark})' if self.remark else ''}".rstrip("\n")

    def _repr_html_(self) -> str:
        remark = f"<p><small>{escape(self.remark)}</small></p>" if self.remark else ""
        return f'<pre style="white-space: pre-wrap">{escape(self.source)}\n<b>{escape(self.text)}</b></pre>{remark}'


def translate_texts(
    model: EncoderDecoderModel, tokenizer: Tokenizer, texts: Sequence[str], settings: Beam | None = None
) -> list[Translated]:
    """Translate texts; what the tokenizer does not know or the context cannot hold is left out, and that is said."""
    _refuse_other(model, tokenizer)
    for place, text in enumerate(texts):
        _refuse_no_text(place, text)
    whole = [tokenizer.encode_known(text) for text in texts]
    read = [ids[: longest_source(model)].tolist() for ids, _ in whole]
    found = translate(model, read, settings)
    return [
        _translated(tokenizer, text, len(ids), len(kept), left_out, one)
        for text, (ids, left_out), kept, one in zip(texts, whole, read, found, strict=True)
    ]


def _refuse_no_text(place: int, text: object) -> None:
    if not isinstance(text, str):
        raise InputError(f"source {place} is {text!r} ({type(text).__name__}), and no text. Put it in quotes.")


def _refuse_other(model: EncoderDecoderModel, tokenizer: Tokenizer) -> None:
    if tokenizer.vocabulary + len(MARKS) != model.spec.vocabulary:
        raise InputError(
            f"the tokenizer has {tokenizer.vocabulary} tokens and the model {model.spec.vocabulary}, of which "
            f"{len(MARKS)} are marks. Use the tokenizer it was trained with."
        )


def _translated(
    tokenizer: Tokenizer, source: str, whole: int, read: int, left_out: int, found: Translation
) -> Translated:
    text = tokenizer.decode(found.tokens)
    return Translated(source, text, found.score, found.normalised, found.tokens, found.finished, whole, read, left_out)
