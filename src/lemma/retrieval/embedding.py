"""Images and texts as vectors of the space that both towers of a dual encoder share."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float32, UInt8
from torch.nn import functional

from lemma.data.batches import TokenRows, batch_by_length
from lemma.data.images import normalise_caption
from lemma.data.store import encode_texts, find_unknown, fit_rows
from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError, RunError
from lemma.models.base import measuring, tokens_per_batch
from lemma.models.classifier import pool
from lemma.models.dual_encoder import DualEncoderModel, embed_images, embed_texts
from lemma.models.transformer import EncoderModel
from lemma.report.numbers import pluralize
from lemma.runs.load import Run
from lemma.spec.models import Transformer, max_text_tokens

READING_VERSION = 1  # of how image files become pixels: another version makes other vectors
TEXT_FIELDS = {"body", "pool", "temperature"}  # fields of the spec on which no image's vector depends

Vectors = Float32[np.ndarray, "batch shared"]


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as rows of tokens, with a note on each and whether it holds a known token."""

    rows: TokenRows
    is_known: Bool[np.ndarray, " texts"]  # has any token that the tokenizer knows, besides white space
    notes: tuple[str, ...]  # on what was left out of each text


@dataclass(frozen=True)
class Embedder:
    """Embedding of images and texts by a run's dual encoder, or by the one inside its re-ranker."""

    run: Run

    @cached_property
    def towers(self) -> DualEncoderModel:
        """The dual encoder: the run's model, or the one inside its re-ranker."""
        hint = "To train one: lemma train dual-encoder --images emoji --out RUN"
        return self.run.require(DualEncoderModel, "a dual encoder", hint)

    @property
    def image_side(self) -> int:
        """Height and width in pixels of the images that the model reads."""
        return self.towers.spec.image_side

    @property
    def width(self) -> int:
        """Number of dimensions of the embeddings."""
        return self.towers.spec.shared

    @cached_property
    def hash(self) -> str:
        """Hash of everything that image vectors depend on: image tower, projection, and image decoding."""
        fields = {name: value for name, value in self.towers.spec.to_dict().items() if name not in TEXT_FIELDS}
        digest = hashlib.sha256(json.dumps([READING_VERSION, fields], sort_keys=True).encode())
        for part in (self.towers.image, self.towers.image_projection):
            for name, tensor in part.state_dict().items():
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def fingerprint(self, crop_margins: bool) -> str:
        """Return the text that identifies, in an index, this model and whether it crops the margins of images."""
        return f"{self.hash} framed" if crop_margins else self.hash

    def image_vectors(self, pixels: UInt8[np.ndarray, "batch 3 side side"]) -> Vectors:
        """Return the embeddings of images, one per row; raise RunError if they are not finite."""
        return self._check_finite(embed_images(self.towers, pixels))

    def text_vectors(self, texts: Sequence[str]) -> tuple[Vectors, TokenizedTexts]:
        """Return the embeddings of texts, one per row, and their tokens with notes on what was truncated or unknown.

        Texts are lower-cased as in training and cut to the length that the text tower reads.
        """
        body, tokenizer = self.towers.spec.body, self.run.tokenizer
        texts, special_tokens = [normalise_caption(text) for text in texts], isinstance(body, Transformer)
        rows, _ = encode_texts(tokenizer, texts, lambda size: None)
        is_known = ~find_unknown(rows, tokenizer)[1]
        max_tokens = max_text_tokens(body) - 2 * special_tokens
        lengths = rows.lengths.tolist()
        notes = tuple(
            _truncation_note(tokenizer, text, length, max_tokens) for text, length in zip(texts, lengths, strict=True)
        )
        rows = fit_rows(rows, tokenizer, max_text_tokens(body), special_tokens)
        vectors = self._check_finite(embed_texts(self.towers, rows))
        return vectors, TokenizedTexts(rows, is_known, notes)

    def _check_finite(self, vectors: Vectors) -> Vectors:
        """Return the vectors unchanged; raise RunError if a number is infinite or NaN."""
        if not np.isfinite(vectors).all():
            raise RunError(
                f"{self.run.path} gives vectors that are not finite: its training diverged. "
                "Train it again with a lower learning rate."
            )
        return vectors


def _truncation_note(tokenizer: Tokenizer, text: str, length: int, max_tokens: int) -> str:
    """Return a note on a text's unknown characters and words and on its truncation; "" if there is nothing to note.

    `length` is its number of tokens.
    """
    ids, dropped = tokenizer.encode_lossy(text)
    unknown = int((ids == tokenizer.unk).sum()) if tokenizer.unk is not None else 0
    notes = {
        f"{pluralize(dropped, 'character')} left out: not in the tokenizer's vocabulary": dropped,
        f"{pluralize(unknown, 'word')} of {length} unknown": unknown,
        f"only the first {max_tokens} of {length} tokens were read": length > max_tokens,
    }
    return "; ".join(note for note, applies in notes.items() if applies)


def embed_inputs(run: Run, inputs: Sequence[str | Sequence[int]]) -> tuple[list[list[float]], int]:
    """Return the unit-length embedding of each input by the run's model, and the total number of tokens read.

    A dual encoder embeds texts in the space that it shares with images; an encoder averages its output vectors without
    special tokens. An input is a text or a list of token ids.
    """
    is_dual = not isinstance(run.module, EncoderModel)
    towers = run.require(DualEncoderModel, "an encoder or a dual encoder") if is_dual else None
    body, tokenizer = towers.spec.body if towers else run.spec, run.tokenizer
    special_tokens = isinstance(body, Transformer)
    prefix, suffix = tokenizer.boundary_tokens(special_tokens)
    max_tokens = max_text_tokens(body) - len(prefix) - len(suffix)  # pyright: ignore[reportArgumentType]
    rows = [_input_ids(tokenizer, text, number, max_tokens, normalise=is_dual) for number, text in enumerate(inputs)]
    bounds = np.cumsum([0, *map(len, rows)])
    texts = TokenRows(np.concatenate([np.asarray(row) for row in rows]), bounds)
    padded = fit_rows(texts, tokenizer, max_tokens + len(prefix) + len(suffix), special_tokens)
    if towers:
        return embed_texts(towers, padded).tolist(), int(bounds[-1])
    model = run.require(EncoderModel, "an encoder")
    vectors = np.zeros((len(rows), model.vector_width), dtype=np.float32)
    with measuring(model) as device:
        for group in batch_by_length(padded.lengths, tokens_per_batch(device)):
            tokens = torch.from_numpy(padded.pad(group)).to(device)
            positions = torch.arange(tokens.shape[1], device=device)
            ends = torch.from_numpy(padded.lengths[group]).to(device)[:, None] - len(suffix)
            mask = (positions >= len(prefix)) & (positions < ends)
            mean = pool(model.vectors(tokens), mask, "mean")
            vectors[group] = functional.normalize(mean.float(), dim=-1).cpu().numpy()
    return vectors.tolist(), int(bounds[-1])


def _input_ids(
    tokenizer: Tokenizer, text: str | Sequence[int], number: int, max_tokens: int, normalise: bool
) -> Sequence[int]:
    """Return the 1 to `max_tokens` ids of a text (in lower case if `normalise`), or validate ids passed instead.

    `number` is the number of the input in errors.
    """
    if isinstance(text, str):
        text = normalise_caption(text) if normalise else text
        encoded, _ = tokenizer.encode_batch([text])
        ids = encoded.tolist() if (encoded >= 0).all() else tokenizer.encode(text).tolist()  # which names the mistake
    else:
        ids = text
    invalid = next((token for token in ids if not 0 <= int(token) < tokenizer.vocabulary), None)
    if invalid is not None:
        raise InputError(f"input {number}: token {invalid} is not one of 0 to {tokenizer.vocabulary - 1}.")
    if len(ids) > max_tokens or not ids:
        raise InputError(f"input {number} has {len(ids)} tokens; from 1 to {max_tokens} are read. Change its length.")
    return ids
