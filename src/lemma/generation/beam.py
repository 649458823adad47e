"""Beam search over an encoder–decoder, and translation."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError
from lemma.generation.decode import NAN_LOGITS, check_type, fast_copy
from lemma.models.base import evaluating
from lemma.models.encoder_decoder import DecoderState, EncoderDecoderModel
from lemma.report.result import Block, Pre, Result, Text
from lemma.spec.models import SPECIAL_TOKENS

MAX_SCORES = 2**24  # scores of all candidates of a batch: 128 MB in float64
MAX_BEAMS = 512
BeamScores = Float[Tensor, "sources lanes"]
BeamIndices = Int[Tensor, "sources lanes"]


@dataclass(frozen=True)
class Beam:
    """How many hypotheses to keep side by side, and how to compare translations of different lengths.

    Translations are compared by Σ log p / length^length_penalty: 0 takes the most likely, 1 the one with the most
    likely tokens on average, more favours longer ones.
    """

    beam: int = 1
    length_penalty: float = 1.0
    tokens: int | None = None
    """The most tokens to write, <end> included; the model's context if unset, and never more."""

    def __post_init__(self) -> None:
        check_type("beam", self.beam, Integral, "a whole number from 1 up")
        check_type("length_penalty", self.length_penalty, Real, "a number from 0 up")
        if self.tokens is not None:
            check_type("tokens", self.tokens, Integral, "a whole number from 1 up; leave it out for the context")
        if self.beam < 1:
            raise InputError(f"beam = {self.beam} is less than 1: 1 always takes the most likely token, 4 is usual.")
        if not 0 <= self.length_penalty < math.inf:
            raise InputError(f"length_penalty = {self.length_penalty} is not a number from 0 (the most likely) up.")
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"tokens = {self.tokens} is less than 1; leave it out to write up to the context.")


@dataclass(frozen=True)
class Translation:
    """The tokens written for a source, special tokens left out."""

    tokens: tuple[int, ...]
    score: float
    """Σ log p of its tokens, of <end> too, in nats."""
    normalised: float
    """The score over (number of those tokens)^length_penalty: what the beam compares."""
    finished: bool
    """Whether it ends with <end>, and was not cut off."""


class BeamSearch:
    """What is being written for the sources of one batch; those that are done leave it.

    A source has `beam` lanes. Of all ways to extend its hypotheses by one token, the most likely fill its free lanes;
    one that ends with <end> keeps its lane for good, so that the beam grows narrower, and a beam of 1 always takes the
    most likely token. What has not ended when there is no room left is cut off there, and competes as it is.
    """

    def __init__(
        self, model: EncoderDecoderModel, sources: Sequence[Sequence[int]], beam: int, penalty: float, max_tokens: int
    ) -> None:
        self.vocabulary, self.max_tokens, self.penalty = model.spec.vocabulary, max_tokens, penalty
        self.start, self.end, self.mask = model.spec.special_ids
        self.step = fast_copy(model).step
        device = next(model.parameters()).device
        longest = max(map(len, sources)) + 1
        padded = [[*ids, self.end, *[-1] * (longest - len(ids) - 1)] for ids in sources]
        self.state: DecoderState = model.begin(torch.tensor(padded, device=device))
        self.forbidden = torch.tensor([self.start, self.mask], device=device)
        self.source_ids, self.open_beams = list(range(len(sources))), [beam] * len(sources)
        self.scores: BeamScores = torch.zeros(len(sources), 1, dtype=torch.float64, device=device)
        self.tokens = torch.full((len(sources), 1, 1), self.start, device=device)
        self.best: dict[int, Translation] = {}

    def run(self) -> list[Translation]:
        """Write until every source has its best translation."""
        length = 0
        while self.source_ids:
            length += 1
            self._select(*self._extend(), length)
        return [self.best[number] for number in sorted(self.best)]

    def _extend(self) -> tuple[BeamScores, BeamIndices, BeamIndices]:
        """The most likely extensions: their scores, the lanes they come from, their new tokens."""
        logits, self.state = self.step(self.tokens[:, :, -1].reshape(-1, 1), self.state)
        exact = torch.promote_types(logits.dtype, torch.float32)
        log = logits[:, -1].log_softmax(-1, dtype=exact).index_fill(-1, self.forbidden, -torch.inf)
        if log.isnan().any():
            raise InputError(NAN_LOGITS)
        sums = (self.scores[..., None] + log.unflatten(0, self.scores.shape)).flatten(1)
        width = min(max(self.open_beams), sums.shape[1])
        chosen = sums.argmax(1, keepdim=True) if width == 1 else sums.topk(width).indices  # of equals, the lowest id
        return sums.gather(1, chosen), chosen // self.vocabulary, chosen % self.vocabulary

    def _select(self, values: BeamScores, parents: BeamIndices, tokens: BeamIndices, length: int) -> None:
        """Fill the free lanes, set aside what has ended, and go on with the sources that are not done."""
        rank, free = (
            torch.arange(values.shape[1], device=values.device),
            torch.tensor(self.open_beams, device=values.device),
        )
        values = values.masked_fill(rank >= free[:, None], -torch.inf)
        longer = self.tokens.gather(1, parents[..., None].expand(-1, -1, length))
        longer = torch.cat([longer, tokens[..., None]], dim=2)
        ended = (tokens == self.end) & values.isfinite()
        self._record_complete(ended, values, longer, finished=True)
        values = values.masked_fill(ended, -torch.inf)
        if length == self.max_tokens:
            self._record_complete(values.isfinite(), values, longer, finished=False)
        hopes = values.amax(1).tolist()
        rows = [row for row, hope in enumerate(hopes) if length < self.max_tokens and self._can_improve(row, hope)]
        self._keep_sources(rows, values, parents, longer)

    def _record_complete(self, mask: Tensor, values: BeamScores, written: Tensor, finished: bool) -> None:
        """Keep the best of what is complete; each takes one of its source's lanes."""
        rows = mask.nonzero()[:, 0].tolist()
        for row, score, tokens in zip(rows, values[mask].tolist(), written[mask].tolist(), strict=True):
            number, said = self.source_ids[row], tokens[1:-1] if finished else tokens[1:]
            found = Translation(tuple(said), score, score / (len(tokens) - 1) ** self.penalty, finished)
            self.open_beams[row] -= 1
            self.best[number] = max(self.best.get(number, found), found, key=lambda one: one.normalised)

    def _can_improve(self, row: int, best_open: float) -> bool:
        """Whether the most likely hypothesis of a source may still become better than its best translation.

        No token makes a score higher, and no translation is longer than there is room for.
        """
        best = self.best.get(self.source_ids[row])
        return best_open > -torch.inf and (best is None or best_open / self.max_tokens**self.penalty > best.normalised)

    def _keep_sources(self, rows: list[int], values: BeamScores, parents: BeamIndices, written: Tensor) -> None:
        """Keep these sources, and give every lane the state of the one it comes from."""
        index, lanes = torch.tensor(rows, dtype=torch.long, device=values.device), self.scores.shape[1]
        places = (index[:, None] * lanes + parents[index]).flatten()
        if len(rows) < len(values) or parents.shape[1] != lanes:
            self.state = self.state.select_rows(places)
        elif lanes > 1:  # every source stays in its place
            self.state = self.state.reorder(places)
        self.scores, self.tokens = values[index], written[index]
        self.source_ids, self.open_beams = (
            [self.source_ids[row] for row in rows],
            [self.open_beams[row] for row in rows],
        )


@torch.inference_mode()
def translate(
    model: EncoderDecoderModel, sources: Sequence[Sequence[int] | np.ndarray], settings: Beam | None = None
) -> list[Translation]:
    """Translate sources, given as ids without special tokens, each on its own whatever else is in the batch.

    A beam may lose the greedy translation on its way and end with a worse one. So that it never does, the greedy one
    competes too: the normalised score of a wider beam is at least that of a beam of 1.
    """
    settings = settings or Beam()
    rows = [_check_source(model, source, number) for number, source in enumerate(sources)]
    with evaluating(model):
        found = _search(model, rows, settings, settings.beam)
        if settings.beam > 1:
            greedy = _search(model, rows, settings, 1)
            found = [max(pair, key=lambda one: one.normalised) for pair in zip(found, greedy, strict=True)]
    return found


def max_source_length(model: EncoderDecoderModel) -> int:
    """How many tokens a source may have: the context has <end> in it."""
    return model.spec.context - 1


def _check_source(model: EncoderDecoderModel, source: Sequence[int] | np.ndarray, number: int) -> list[int]:
    own = (
        0 if model.spec.special_tokens else len(SPECIAL_TOKENS)
    )  # special tokens that come after those of the tokenizer
    ids, known = [int(token) for token in source], model.spec.vocabulary - own
    wrong = next((token for token in ids if not 0 <= token < known), None)
    if wrong is not None:
        raise InputError(
            f"source {number}: token {wrong} is not one of 0 to {known - 1}, the tokens that are not special. "
            "Use the tokenizer the model was trained with."
        )
    if len(ids) > max_source_length(model):
        raise InputError(
            f"source {number} has {len(ids)} tokens; with <end> the context of {model.spec.context} has room for "
            f"{max_source_length(model)}. Cut it."
        )
    return ids


def _search(model: EncoderDecoderModel, rows: Sequence[list[int]], settings: Beam, beam: int) -> list[Translation]:
    """The best translation of every source, those of similar length in one batch."""
    most = min(settings.tokens or model.spec.context, model.spec.context)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    size = max(1, min(MAX_SCORES // (beam * model.spec.vocabulary), MAX_BEAMS // beam))
    found: dict[int, Translation] = {}
    for begin in range(0, len(order), size):
        batch = order[begin : begin + size]
        search = BeamSearch(model, [rows[number] for number in batch], beam, float(settings.length_penalty), most)
        found |= dict(zip(batch, search.run(), strict=True))
    return [found[number] for number in range(len(rows))]


@dataclass(frozen=True)
class TranslatedText(Result):
    """A text and its translation."""

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

    @property
    def title(self) -> str:
        """What it is."""
        return "translation"

    @property
    def note(self) -> str:
        """What was left out or cut off, in one line; empty if nothing was."""
        remarks: list[str] = []
        if self.left_out:
            characters = "character" if self.left_out == 1 else "characters"
            remarks.append(f"{self.left_out} {characters} of the source left out: the tokenizer does not know them")
        if self.source_tokens > self.read_tokens:
            remarks.append(
                f"the source has {self.source_tokens} tokens, of which only the first {self.read_tokens} were read: "
                "the model's context has no room for more"
            )
        if not self.finished:
            remarks.append("the translation was cut off: it may have no more tokens")
        return "; ".join(remarks)

    def blocks(self) -> Iterable[Block]:
        """The source, its translation and what was left out."""
        yield Pre([(f"{self.source}\n", "prompt"), (self.text, "")])
        if self.note:
            yield Text(self.note, "note")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "tokens": list(self.tokens), "remark": self.note}

    def __str__(self) -> str:  # the text as it is, never wrapped
        return f"{self.text}\n{f'({self.note})' if self.note else ''}".rstrip("\n")


def translate_texts(
    model: EncoderDecoderModel, tokenizer: Tokenizer, texts: Sequence[str], settings: Beam | None = None
) -> list[TranslatedText]:
    """Translate texts; what the tokenizer does not know or the context cannot hold is left out, and that is said."""
    if not model.spec.special_tokens and tokenizer.vocabulary + len(SPECIAL_TOKENS) != model.spec.vocabulary:
        raise InputError(
            f"the tokenizer has {tokenizer.vocabulary} tokens and the model {model.spec.vocabulary}, of which "
            f"{len(SPECIAL_TOKENS)} are special. Use the tokenizer it was trained with."
        )
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"source {place} is {text!r} ({type(text).__name__}), not a text. Put it in quotes.")
    encoded = [tokenizer.encode_lossy(text) for text in texts]
    read = [ids[: max_source_length(model)].tolist() for ids, _ in encoded]
    found: list[TranslatedText] = []
    for text, (ids, left_out), kept, one in zip(texts, encoded, read, translate(model, read, settings), strict=True):
        made, sizes = tokenizer.decode(one.tokens), (len(ids), len(kept), left_out)
        found.append(TranslatedText(text, made, one.score, one.normalised, one.tokens, one.finished, *sizes))
    return found
