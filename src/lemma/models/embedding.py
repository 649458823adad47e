"""Pictures and texts in the space that they share, by a dual encoder: many, a block at a time."""

import numpy as np
import torch
from jaxtyping import Float, UInt8

from lemma.data import Rows
from lemma.models.dual_encoder import DualEncoderModel
from lemma.models.measuring import by_length, measuring, positions_on

Vectors = Float[np.ndarray, "rows shared"]


def embed_images(model: DualEncoderModel, pixels: UInt8[np.ndarray, "images channels side side"]) -> Vectors:
    """Every picture as a vector of length 1."""
    found = [np.zeros((0, model.spec.shared), dtype=np.float32)]
    with measuring(model) as device:
        at_once = max(1, positions_on(device) // model.spec.grid**2)
        for start in range(0, len(pixels), at_once):
            some = torch.from_numpy(np.array(pixels[start : start + at_once])).to(device)
            found.append(model.image_vectors(some).float().cpu().numpy())
    return np.concatenate(found)


def embed_texts(model: DualEncoderModel, rows: Rows) -> Vectors:
    """Every text as a vector of length 1, those of like length together."""
    found = np.zeros((len(rows.lengths), model.spec.shared), dtype=np.float32)
    with measuring(model) as device:
        for group in by_length(rows.lengths, positions_on(device)):
            tokens = torch.from_numpy(rows.beside(group)).to(device)
            found[group] = model.text_vectors(tokens).float().cpu().numpy()
    return found
