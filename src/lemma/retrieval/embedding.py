"""Pictures and texts as vectors of the space that both towers of a run share."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32, UInt8

from lemma.errors import RunError
from lemma.models import DualEncoderModel, embed_images, embed_texts
from lemma.retrieval.texts import Tokenised, tokenise
from lemma.runs import Run

READING = 1
"""The number of the way in which pictures become pixels: another one makes other vectors."""
OF_TEXTS = {"body", "pool", "temperature"}
"""Words of the spec on which no picture's vector depends."""

Vectors = Float32[np.ndarray, "batch shared"]


@dataclass(frozen=True)
class Embedder:
    """The two towers of a run, whatever stands around them."""

    run: Run

    @cached_property
    def towers(self) -> DualEncoderModel:
        """The dual encoder: the run's own, or that of its re-ranker."""
        return self.run.dual_encoder

    @property
    def side(self) -> int:
        """Pixels on a side of a picture as it is read."""
        return self.towers.spec.side

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.towers.spec.shared

    @cached_property
    def hash(self) -> str:
        """What tells these picture vectors from all others: the image tower, its map, and how pictures are read."""
        words = {word: value for word, value in self.towers.spec.to_dict().items() if word not in OF_TEXTS}
        digest = hashlib.sha256(json.dumps([READING, words], sort_keys=True).encode())
        for part in (self.towers.image, self.towers.image_projection):
            for name, tensor in part.state_dict().items():
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def made_by(self, framed: bool) -> str:
        """What an index says its vectors were made by."""
        return f"{self.hash} framed" if framed else self.hash

    def pictures(self, pixels: UInt8[np.ndarray, "batch 3 side side"]) -> Vectors:
        """The vectors of some pictures."""
        return self._checked(embed_images(self.towers, pixels))

    def texts(self, texts: Sequence[str]) -> tuple[Vectors, Tokenised]:
        """The vectors of some texts, and what was read of each."""
        tokenised = tokenise(texts, self.run.tokenizer, self.towers.spec.body)
        return self._checked(embed_texts(self.towers, tokenised.rows)), tokenised

    def _checked(self, vectors: Vectors) -> Vectors:
        if not np.isfinite(vectors).all():
            raise RunError(f"{self.run.path} gives vectors that are no finite numbers: its training went wrong.")
        return vectors
