"""Beam search over an encoder–decoder, and translation."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError
from lemma.generation.sampling import NAN_LOGITS, check_type
from lemma.models.base import evaluating, fast_copy
from lemma.models.encoder_decoder import DecoderState, EncoderDecoderModel
from lemma.report.result import Block, Pre, Result, Text
from lemma.spec.models import SPECIAL_TOKENS

MAX_SCORES = 2**24  # of all candidates of a batch: 128 MB in float64
MAX_BEAMS = 512  # of a batch
BeamScores = Float[Tensor, "sources beams"]
BeamIndices = Int[Tensor, "sources beams"]
BeamTokens = Int[Tensor, "sources beams length"]


@dataclass(frozen=True)
class Beam:
    """Settings of beam search: the hypotheses kept side by side, and how translations of different lengths compare.

    Translations are compared by Σ log p / length^length_penalty: 0 takes the most likely, 1 the one with the most
    likely tokens on average, more favours longer ones.
    """

    beam: int = 1
    length_penalty: float = 1.0
    tokens: int | None = None  # the most to write, <end> included; the model's context if unset, and never more

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
    """The tokens generated for a source, special tokens left out."""

    tokens: tuple[int, ...]
    score: float  # Σ log p of its tokens, of <end> too, in nats
    normalised: float  # the score over (number of those tokens)^length_penalty, by which the beam compares
    finished: bool  # it ends with <end>, and was not cut off


class BeamSearch:
    """Beam search for one batch of sources; finished sources leave the batch.

    Of all ways to extend the hypotheses of a source by one token, the most likely fill its open beams; one that ends
    with <end> closes its beam, so that the search grows narrower, and a beam of 1 always takes the most likely token.
    A hypothesis that has not ended at the maximal length is cut off there, and competes as it is.

    Attributes:
        source_ids: index of the source in each row; rows of finished sources are dropped.
        open_beams: beams of each row that have not ended.
        best: the best complete translation by source.
    """

    def __init__(
        self, model: EncoderDecoderModel, sources: Sequence[Sequence[int]], beam: int, penalty: float, max_tokens: int
    ) -> None:
        self.vocabulary, self.max_tokens, self.penalty = model.spec.vocabulary, max_tokens, penalty
        start, self.end, mask = model.spec.special_ids
        self.step = fast_copy(model).step
        device = next(model.parameters()).device
        longest = max(map(len, sources)) + 1
        padded = [[*ids, self.end, *[-1] * (longest - len(ids) - 1)] for ids in sources]
        self.state: DecoderState = model.begin(torch.tensor(padded, device=device))
        self.forbidden = torch.tensor([start, mask], device=device)
        self.source_ids, self.open_beams = list(range(len(sources))), [beam] * len(sources)
        self.scores: BeamScores = torch.zeros(len(sources), 1, dtype=torch.float64, device=device)
        self.tokens: BeamTokens = torch.full((len(sources), 1, 1), start, device=device)
        self.best: dict[int, Translation] = {}

    def run(self) -> list[Translation]:
        """Return the best translation of each source, after searching until all are complete."""
        length = 0
        while self.source_ids:
            length += 1
            self._select(*self._extend(), length)
        return [self.best[source] for source in sorted(self.best)]

    def _extend(self) -> tuple[BeamScores, BeamIndices, BeamIndices]:
        """Return each source's most likely extensions by a token: scores, indices of the extended beams, new tokens."""
        logits, self.state = self.step(self.tokens[:, :, -1].reshape(-1, 1), self.state)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logprobs = logits[:, -1].log_softmax(-1, dtype=dtype).index_fill(-1, self.forbidden, -torch.inf)
        if logprobs.isnan().any():
            raise InputError(NAN_LOGITS)
        sums = (self.scores[..., None] + logprobs.unflatten(0, self.scores.shape)).flatten(1)
        width = min(max(self.open_beams), sums.shape[1])
        best = sums.argmax(1, keepdim=True) if width == 1 else sums.topk(width).indices  # of equals, the lowest id
        return sums.gather(1, best), best // self.vocabulary, best % self.vocabulary

    def _select(self, scores: BeamScores, parents: BeamIndices, new_tokens: BeamIndices, length: int) -> None:
        """Continue the open beams with extensions from `_extend`; record complete ones, and drop finished sources.

        Args:
            length: tokens written so far, the new one included.
        """
        ranks = torch.arange(scores.shape[1], device=scores.device)
        open_beams = torch.tensor(self.open_beams, device=scores.device)
        scores = scores.masked_fill(ranks >= open_beams[:, None], -torch.inf)
        tokens = self.tokens.gather(1, parents[..., None].expand(-1, -1, length))
        tokens = torch.cat([tokens, new_tokens[..., None]], dim=2)
        has_ended = (new_tokens == self.end) & scores.isfinite()
        self._record_complete(has_ended, scores, tokens, finished=True)
        scores = scores.masked_fill(has_ended, -torch.inf)
        if length == self.max_tokens:
            self._record_complete(scores.isfinite(), scores, tokens, finished=False)
        best_open = scores.amax(1).tolist()
        rows = [row for row, best in enumerate(best_open) if length < self.max_tokens and self._can_improve(row, best)]
        self._keep_sources(rows, scores, parents, tokens)

    def _record_complete(self, mask: Tensor, scores: BeamScores, tokens: BeamTokens, finished: bool) -> None:
        """Close a beam for each hypothesis where `mask` is True, and store it if it is the best of its source so far.

        Args:
            finished: True if they end with <end>, False if they are cut off at the maximal length.
        """
        rows = mask.nonzero()[:, 0].tolist()
        for row, score, ids in zip(rows, scores[mask].tolist(), tokens[mask].tolist(), strict=True):
            source, output = self.source_ids[row], ids[1:-1] if finished else ids[1:]
            complete = Translation(tuple(output), score, score / (len(ids) - 1) ** self.penalty, finished)
            self.open_beams[row] -= 1
            self.best[source] = _better(self.best.get(source, complete), complete)

    def _can_improve(self, row: int, best_open: float) -> bool:
        """Return whether an open hypothesis of score `best_open` may still beat the best translation of the row.

        No token makes a score higher, and no translation is longer than `max_tokens`.
        """
        best = self.best.get(self.source_ids[row])
        return best_open > -torch.inf and (best is None or best_open / self.max_tokens**self.penalty > best.normalised)

    def _keep_sources(self, rows: list[int], scores: BeamScores, parents: BeamIndices, tokens: BeamTokens) -> None:
        """Continue with the sources at `rows` only; each new beam gets the decoding state of the beam it extends."""
        index, beams = torch.tensor(rows, dtype=torch.long, device=scores.device), self.scores.shape[1]
        state_rows = (index[:, None] * beams + parents[index]).flatten()
        if len(rows) < len(scores) or parents.shape[1] != beams:
            self.state = self.state.select_rows(state_rows)
        elif beams > 1:  # every source stays in its row
            self.state = self.state.reorder(state_rows)
        self.scores, self.tokens = scores[index], tokens[index]
        self.source_ids = [self.source_ids[row] for row in rows]
        self.open_beams = [self.open_beams[row] for row in rows]


def _better(first: Translation, second: Translation) -> Translation:
    """Return the translation with the higher normalised score; of equals the first."""
    return max(first, second, key=lambda translation: translation.normalised)


@torch.inference_mode()
def translate(
    model: EncoderDecoderModel, sources: Sequence[Sequence[int] | np.ndarray], settings: Beam | None = None
) -> list[Translation]:
    """Return the translation of each source (token ids without special tokens), whatever the other sources are.

    A beam may lose the greedy translation on its way and end with a worse one. So that it never does, the greedy one
    competes too: the normalised score of a wider beam is at least that of a beam of 1.
    """
    settings = settings or Beam()
    rows = [_check_source(model, source, index) for index, source in enumerate(sources)]
    with evaluating(model):
        translations = _search(model, rows, settings, settings.beam)
        if settings.beam > 1:
            translations = list(map(_better, translations, _search(model, rows, settings, 1)))
    return translations


def max_source_length(model: EncoderDecoderModel) -> int:
    """Return the largest number of tokens of a source: the context without <end>."""
    return model.spec.context - 1


def _check_source(model: EncoderDecoderModel, source: Sequence[int] | np.ndarray, index: int) -> list[int]:
    """Return a source as a list of ints; if it is too long or has unknown tokens, raise InputError with its `index`."""
    num_added = 0 if model.spec.special_tokens else len(SPECIAL_TOKENS)  # they come after the tokenizer's own tokens
    ids, num_tokens = [int(token) for token in source], model.spec.vocabulary - num_added
    unknown = next((token for token in ids if not 0 <= token < num_tokens), None)
    if unknown is not None:
        raise InputError(
            f"source {index}: token {unknown} is not one of 0 to {num_tokens - 1}, the tokens that are not special. "
            "Use the tokenizer the model was trained with."
        )
    if len(ids) > max_source_length(model):
        raise InputError(
            f"source {index} has {len(ids)} tokens; with <end> the context of {model.spec.context} has room for "
            f"{max_source_length(model)}. Cut it."
        )
    return ids


def _search(model: EncoderDecoderModel, rows: Sequence[list[int]], settings: Beam, beam: int) -> list[Translation]:
    """Return the best translation of every source (row of token ids), in their order, by a search with `beam` beams."""
    max_tokens = min(settings.tokens or model.spec.context, model.spec.context)
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    size = max(1, min(MAX_SCORES // (beam * model.spec.vocabulary), MAX_BEAMS // beam))
    translations: dict[int, Translation] = {}
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        penalty = float(settings.length_penalty)
        search = BeamSearch(model, [rows[index] for index in batch], beam, penalty, max_tokens)
        translations |= dict(zip(batch, search.run(), strict=True))
    return [translations[index] for index in range(len(rows))]


@dataclass(frozen=True)
class TranslatedText(Result):
    """A text and its translation."""

    source: str
    text: str
    score: float  # Σ log p of its tokens, in nats
    normalised: float  # the score over length^length_penalty, by which translations were compared
    tokens: tuple[int, ...]
    finished: bool  # the model has ended it, and not the context
    source_tokens: int  # of the source
    read_tokens: int  # how many of them the model has read: its context may be shorter
    left_out: int = 0  # characters of the source that the tokenizer does not know

    @property
    def title(self) -> str:
        """Heading of the result."""
        return "translation"

    @property
    def note(self) -> str:
        """A sentence about characters or tokens that were left out or cut off; empty if none were."""
        notes: list[str] = []
        if self.left_out:
            characters = "character" if self.left_out == 1 else "characters"
            notes.append(f"{self.left_out} {characters} of the source left out: the tokenizer does not know them")
        if self.source_tokens > self.read_tokens:
            notes.append(
                f"the source has {self.source_tokens} tokens, of which only the first {self.read_tokens} were read: "
                "the model's context has no room for more"
            )
        if not self.finished:
            notes.append("the translation was cut off: it may have no more tokens")
        return "; ".join(notes)

    def blocks(self) -> Iterable[Block]:
        """Yield the source with its translation, then the note if there is one."""
        yield Pre([(f"{self.source}\n", "prompt"), (self.text, "")])
        if self.note:
            yield Text(self.note, "note")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name for JSON, and the note as "remark"."""
        return super().to_dict() | {"remark": self.note}

    def __str__(self) -> str:  # the text as it is, never wrapped
        return f"{self.text}\n{f'({self.note})' if self.note else ''}".rstrip("\n")


def translate_texts(
    model: EncoderDecoderModel, tokenizer: Tokenizer, texts: Sequence[str], settings: Beam | None = None
) -> list[TranslatedText]:
    """Return the translation of each text, without characters that the tokenizer lacks and tokens past the context."""
    if not model.spec.special_tokens and tokenizer.vocabulary + len(SPECIAL_TOKENS) != model.spec.vocabulary:
        raise InputError(
            f"the tokenizer has {tokenizer.vocabulary} tokens and the model {model.spec.vocabulary}, of which "
            f"{len(SPECIAL_TOKENS)} are special. Use the tokenizer it was trained with."
        )
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"source {index} is {text!r} ({type(text).__name__}), not a text. Put it in quotes.")
    encoded = [tokenizer.encode_lossy(text) for text in texts]
    sources = [ids[: max_source_length(model)].tolist() for ids, _ in encoded]
    results: list[TranslatedText] = []
    for text, (ids, left_out), read, best in zip(
        texts, encoded, sources, translate(model, sources, settings), strict=True
    ):
        translation, sizes = tokenizer.decode(best.tokens), (len(ids), len(read), left_out)
        results.append(
            TranslatedText(text, translation, best.score, best.normalised, best.tokens, best.finished, *sizes)
        )
    return results
