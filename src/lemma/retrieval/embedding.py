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
from lemma.errors import InputError, RunError
from lemma.models.base import measuring, tokens_per_batch
from lemma.models.classifier import pool
from lemma.models.dual_encoder import DualEncoderModel, embed_images, embed_texts
from lemma.models.transformer import EncoderModel
from lemma.report.numbers import pluralize
from lemma.runs.load import Run
from lemma.spec.models import Transformer, max_text_tokens

READING_VERSION = 1  # the version of how image files become pixels: another one makes other vectors
TEXT_FIELDS = {"body", "pool", "temperature"}  # fields of the spec on which no image's vector depends

Vectors = Float32[np.ndarray, "batch shared"]


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as rows of tokens, what was left out of each, and whether the tokenizer knows anything of it."""

    rows: TokenRows
    has_known_tokens: Bool[np.ndarray, " texts"]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Embedder:
    """The two towers of a run, which may be a dual encoder or a re-ranker around one."""

    run: Run

    @cached_property
    def towers(self) -> DualEncoderModel:
        """The dual encoder: the run itself, or that of its re-ranker."""
        hint = "To train one: lemma train dual-encoder --images emoji --out RUN"
        return self.run.require(DualEncoderModel, "a dual encoder", hint)

    @property
    def side(self) -> int:
        """Pixels per side of an image as it is read."""
        return self.towers.spec.image_side

    @property
    def width(self) -> int:
        """The size of a vector."""
        return self.towers.spec.shared

    @cached_property
    def hash(self) -> str:
        """Identifies the image vectors: by the image tower, its projection, and how images are read."""
        fields = {name: value for name, value in self.towers.spec.to_dict().items() if name not in TEXT_FIELDS}
        digest = hashlib.sha256(json.dumps([READING_VERSION, fields], sort_keys=True).encode())
        for part in (self.towers.image, self.towers.image_projection):
            for name, tensor in part.state_dict().items():
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def fingerprint(self, crop_margins: bool) -> str:
        """What an index records as the origin of its vectors."""
        return f"{self.hash} framed" if crop_margins else self.hash

    def image_vectors(self, pixels: UInt8[np.ndarray, "batch 3 side side"]) -> Vectors:
        """The vectors of some images."""
        return self._checked(embed_images(self.towers, pixels))

    def text_vectors(self, texts: Sequence[str]) -> tuple[Vectors, TokenizedTexts]:
        """The vectors of some texts, and what was read of each, as in training: cut to what the body reads."""
        body, tokenizer = self.towers.spec.body, self.run.tokenizer
        texts, special = [normalise_caption(text) for text in texts], isinstance(body, Transformer)
        rows, _ = encode_texts(tokenizer, texts, lambda size: None)
        known, room = ~find_unknown(rows, tokenizer)[1], max_text_tokens(body) - 2 * special
        remarks: list[str] = []
        for text, length in zip(texts, rows.lengths.tolist(), strict=True):
            ids, left_out = tokenizer.encode_lossy(text)
            strange = int((ids == tokenizer.unk).sum()) if tokenizer.unk is not None else 0
            said = {
                f"{pluralize(left_out, 'character')} left out: not in the tokenizer's vocabulary": left_out,
                f"{pluralize(strange, 'word')} of {length} unknown": strange,
                f"only the first {room} of {length} tokens were read": length > room,
            }
            remarks.append("; ".join(remark for remark, holds in said.items() if holds))
        rows = fit_rows(rows, tokenizer, max_text_tokens(body), special)
        return self._checked(embed_texts(self.towers, rows)), TokenizedTexts(rows, known, tuple(remarks))

    def _checked(self, vectors: Vectors) -> Vectors:
        if not np.isfinite(vectors).all():
            raise RunError(
                f"{self.run.path} gives vectors that are not finite: its training diverged. "
                "Train it again with a lower learning rate."
            )
        return vectors


def embed_inputs(run: Run, inputs: Sequence[str | Sequence[int]]) -> tuple[list[list[float]], int]:
    """The vectors of texts or of their tokens, each of length 1, and how many tokens were read.

    A dual encoder's are those in the space that it shares with images. An encoder's is the mean of its vectors, special
    tokens left out.
    """
    dual = not isinstance(run.module, EncoderModel)
    towers = run.require(DualEncoderModel, "an encoder or a dual encoder") if dual else None
    body, tokenizer = towers.spec.body if towers else run.spec, run.tokenizer
    special = isinstance(body, Transformer)
    before, after = tokenizer.boundary_tokens(special)
    room = max_text_tokens(body) - len(before) - len(after)  # pyright: ignore[reportArgumentType]
    rows: list[Sequence[int]] = []
    for number, given in enumerate(inputs):
        ids = given
        if isinstance(given, str):
            text = normalise_caption(given) if dual else given
            found, _ = tokenizer.encode_batch([text])
            ids = found.tolist() if (found >= 0).all() else tokenizer.encode(text).tolist()  # which names what is wrong
        wrong = next((token for token in ids if not 0 <= int(token) < tokenizer.vocabulary), None)
        if wrong is not None:
            raise InputError(f"input {number}: token {wrong} is not one of 0 to {tokenizer.vocabulary - 1}.")
        if len(ids) > room or not ids:
            raise InputError(f"input {number} has {len(ids)} tokens; from 1 to {room} are read. Change its length.")
        rows.append(ids)  # pyright: ignore[reportArgumentType]
    bounds = np.cumsum([0, *map(len, rows)])
    plain = TokenRows(np.concatenate([np.asarray(row) for row in rows]), bounds)
    marked = fit_rows(plain, tokenizer, room + len(before) + len(after), special)
    if towers:
        return embed_texts(towers, marked).tolist(), int(bounds[-1])
    model = run.require(EncoderModel, "an encoder")
    vectors = np.zeros((len(rows), model.vector_width), dtype=np.float32)
    with measuring(model) as device:
        for group in batch_by_length(marked.lengths, tokens_per_batch(device)):
            tokens = torch.from_numpy(marked.pad(group)).to(device)
            places = torch.arange(tokens.shape[1], device=device)
            ends = torch.from_numpy(marked.lengths[group]).to(device)[:, None] - len(after)
            there = (places >= len(before)) & (places < ends)
            mean = pool(model.vectors(tokens), there, "mean")
            vectors[group] = functional.normalize(mean.float(), dim=-1).cpu().numpy()
    return vectors.tolist(), int(bounds[-1])
