"""Images and texts as vectors of the space that both towers of a dual encoder share."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float32, UInt8

from lemma.data.batches import TokenRows
from lemma.data.images import lowercase
from lemma.data.store import encode_texts, fit_rows, unknown_tokens
from lemma.errors import RunError
from lemma.models.dual_encoder import DualEncoderModel, embed_images, embed_texts
from lemma.report.numbers import counted
from lemma.runs.load import Run
from lemma.spec.models import Transformer, longest

READING = 1  # the version of how image files become pixels: another one makes other vectors
OF_TEXTS = {"body", "pool", "temperature"}  # fields of the spec on which no image's vector depends

Vectors = Float32[np.ndarray, "batch shared"]


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as rows of tokens, what was left out of each, and whether the tokenizer knows anything of it."""

    rows: TokenRows
    known: Bool[np.ndarray, "texts"]
    remarks: tuple[str, ...]


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
        return self.towers.spec.side

    @property
    def width(self) -> int:
        """The size of a vector."""
        return self.towers.spec.shared

    @cached_property
    def hash(self) -> str:
        """Identifies the image vectors: by the image tower, its projection, and how images are read."""
        fields = {name: value for name, value in self.towers.spec.to_dict().items() if name not in OF_TEXTS}
        digest = hashlib.sha256(json.dumps([READING, fields], sort_keys=True).encode())
        for part in (self.towers.image, self.towers.image_projection):
            for name, tensor in part.state_dict().items():
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def made_by(self, framed: bool) -> str:
        """What an index records as the origin of its vectors."""
        return f"{self.hash} framed" if framed else self.hash

    def images(self, pixels: UInt8[np.ndarray, "batch 3 side side"]) -> Vectors:
        """The vectors of some images."""
        return self._checked(embed_images(self.towers, pixels))

    def texts(self, texts: Sequence[str]) -> tuple[Vectors, TokenizedTexts]:
        """The vectors of some texts, and what was read of each, as in training: cut to what the body reads."""
        body, tokenizer = self.towers.spec.body, self.run.tokenizer
        texts, special = [lowercase(text) for text in texts], isinstance(body, Transformer)
        rows, _ = encode_texts(tokenizer, texts, lambda size: None)
        known, room = ~unknown_tokens(rows, tokenizer)[1], longest(body) - 2 * special
        remarks: list[str] = []
        for text, length in zip(texts, rows.lengths.tolist(), strict=True):
            ids, left_out = tokenizer.encode_known(text)
            strange = int((ids == tokenizer.unk).sum()) if tokenizer.unk is not None else 0
            said = {
                f"{counted(left_out, 'character')} left out: not in the tokenizer's vocabulary": left_out,
                f"{counted(strange, 'word')} of {length} unknown": strange,
                f"only the first {room} of {length} tokens were read": length > room,
            }
            remarks.append("; ".join(remark for remark, holds in said.items() if holds))
        rows = fit_rows(rows, tokenizer, longest(body), special)
        return self._checked(embed_texts(self.towers, rows)), TokenizedTexts(rows, known, tuple(remarks))

    def _checked(self, vectors: Vectors) -> Vectors:
        if not np.isfinite(vectors).all():
            raise RunError(
                f"{self.run.path} gives vectors that are not finite: its training diverged. "
                "Train it again with a lower learning rate."
            )
        return vectors
