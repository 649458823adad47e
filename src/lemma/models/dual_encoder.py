"""The dual encoder of images and texts (problem E7; Radford et al. 2021), and its re-ranker (problem E8)."""

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn
from torch.nn import functional

from lemma.data.batches import TokenRows, batch_by_length
from lemma.layers.attention import AttentionShape, attend
from lemma.layers.feed_forward import FeedForwardLayer, build_norm
from lemma.layers.positions import build_positions
from lemma.models.base import Model, Tokens, measuring, tokens_per_batch
from lemma.models.build import build_body
from lemma.models.classifier import pool
from lemma.models.transformer import LayerShape, Stack, init_transformer
from lemma.spec.models import CHANNELS, CrossAttention, DualEncoder
from lemma.spec.positions import Learned

STD_OFFSET = 0.05  # added to an image's standard deviation, so that a plain colour is not amplified to noise
Images = Shaped[Tensor, "batch channels side side"]
"""Bytes from 0 to 255, or floats from 0 to 1."""


class ImageTower(nn.Module):
    """A Transformer over projected patches with learned positions (Dosovitskiy et al. 2021)."""

    def __init__(self, spec: DualEncoder, dropout: float = 0.0) -> None:
        super().__init__()
        self.patch, width = spec.patch, spec.image_width
        self.enter = nn.Linear(CHANNELS * spec.patch**2, width)
        self.positions = build_positions(Learned(), spec.grid**2, width)
        self.dropout = nn.Dropout(dropout)
        attention = AttentionShape(width, spec.image_heads, causal=False)
        self.encoder = Stack(LayerShape(attention, 4 * width), spec.image_depth, dropout)

    def init_weights(self) -> None:
        """Draw initial weights in place; standardised pixels are projected to entries of about size 1."""
        init_transformer(self)
        nn.init.normal_(self.enter.weight, std=1 / math.sqrt(self.enter.in_features))

    def forward(self, images: Images) -> Float[Tensor, "batch patches image_width"]:
        """Return a vector for every patch of each image, patches row by row."""
        hidden = self.positions(self.enter(extract_patches(standardise(images), self.patch)), start=0)
        return self.encoder(self.dropout(hidden))[0]


def standardise(images: Images) -> Float[Tensor, "batch channels side side"]:
    """Return images shifted and scaled to a mean of 0 and a standard deviation of about 1 each."""
    pixels = images if images.is_floating_point() else images / 255
    spread, mean = torch.std_mean(pixels, dim=(1, 2, 3), keepdim=True)
    return (pixels - mean) / (spread + STD_OFFSET)


def extract_patches(
    images: Float[Tensor, "batch channels side side"], patch: int
) -> Float[Tensor, "batch patches channels_patch_patch"]:
    """Cut images into squares of `patch` × `patch` pixels, row by row, each flattened channel after channel.

    >>> extract_patches(torch.arange(16.0).view(1, 1, 4, 4), 2)[0].tolist()[1]
    [2.0, 3.0, 6.0, 7.0]
    """
    return functional.unfold(images, patch, stride=patch).transpose(1, 2)


MAX_SCALE = 100.0  # of the cosines: the temperature is never below 0.01

Vectors = Float[Tensor, "batch shared"]


class UpperBound(torch.autograd.Function):
    """min(value, bound), whose gradient is zero only where a step would push the value further beyond the bound."""

    @staticmethod
    def forward(value: Tensor, largest: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the smaller of `value` and the bound `largest`."""
        return value.clamp(max=largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save for `backward` whether the bound is reached."""
        value, largest = inputs
        ctx.save_for_backward(value >= largest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradient of the value, or 0 if it would push the value beyond the bound."""
        (reached,) = ctx.saved_tensors
        return torch.where(reached & (gradient < 0), torch.zeros_like(gradient), gradient), None


class DualEncoderModel(Model):
    """Two towers, a linear projection of each to the shared space, and a learned temperature."""

    def __init__(self, spec: DualEncoder, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec, self.body = spec, build_body(spec.body, dropout)
        self.image = ImageTower(spec, dropout)
        self.image_projection = nn.Linear(spec.image_width * spec.num_projections, spec.shared, bias=False)
        self.text_projection = nn.Linear(self.body.vector_width, spec.shared, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(spec.temperature)))

    def init_weights(self) -> None:
        """Draw the initial weights of the image tower and of both projections; the backbone draws its own."""
        self.image.init_weights()
        for projection in (self.image_projection, self.text_projection):
            nn.init.normal_(projection.weight, std=1 / math.sqrt(projection.in_features))
        nn.init.constant_(self.log_scale, -math.log(self.spec.temperature))

    @property
    def scale(self) -> Float[Tensor, ""]:
        """Factor by which cosine similarities become logits: 1 / the learned temperature."""
        return UpperBound.apply(self.log_scale.exp(), MAX_SCALE)  # pyright: ignore[reportReturnType]

    def patches(self, images: Images) -> Float[Tensor, "batch patches image_width"]:
        """Return the image tower's last hidden vector of every patch of every image."""
        return self.image(images)

    def words(self, tokens: Tokens) -> Float[Tensor, "batch time vector_width"]:
        """Return the text backbone's vector of every token id; vectors of padding (id −1) mean nothing."""
        return self.body.vectors(tokens)

    def image_vectors(self, images: Images) -> Vectors:
        """Return a vector of length 1 in the shared space for each image."""
        return self.project_image(self.patches(images))

    def text_vectors(self, tokens: Tokens) -> Vectors:
        """Return a vector of length 1 in the shared space for each text, given by its token ids."""
        return self.project_text(self.words(tokens), tokens >= 0)

    def project_image(self, patches: Float[Tensor, "batch patches image_width"]) -> Vectors:
        """Return each image's vector of length 1 in the shared space, from its patches, concatenated or averaged."""
        joined = patches.flatten(1) if self.spec.num_projections > 1 else patches.mean(1)
        return functional.normalize(self.image_projection(joined), dim=-1)

    def queries(self, patches: Float[Tensor, "batch patches image_width"]) -> Float[Tensor, "batch patches shared"]:
        """Return each patch projected to the shared space by the matrix of its position; their sum is the image."""
        if self.spec.num_projections == 1:
            return self.image_projection(patches)
        maps = self.image_projection.weight.unflatten(1, (self.spec.num_projections, -1))
        return torch.einsum("bpw,spw->bps", patches, maps)

    def keys(self, words: Float[Tensor, "batch time vector_width"]) -> Float[Tensor, "batch time shared"]:
        """Return each word's vector projected to the shared space; pooled, they are the text."""
        return self.text_projection(words)

    def project_text(self, words: Float[Tensor, "batch time vector_width"], mask: Tensor) -> Vectors:
        """Return each text's vector of length 1 in the shared space, pooled over words (`mask` is False at padding)."""
        return functional.normalize(self.text_projection(pool(words, mask, self.spec.pooling)), dim=-1)

    def forward(self, images: Images, tokens: Tokens) -> Float[Tensor, "images texts"]:
        """Return the logits of every image with every text: cosine similarity over the temperature."""
        return self.scale * self.image_vectors(images) @ self.text_vectors(tokens).T


Patches = Float[Tensor, "images patches image_width"]
Words = Float[Tensor, "texts time vector_width"]
WordMask = Bool[Tensor, "texts time"]
HiddenPatches = Float[Tensor, "pairs patches image_width"]


class ImageTextPairs(NamedTuple):
    """Indices of images and of the texts they are paired with."""

    images: Int[Tensor, " pairs"]
    texts: Int[Tensor, " pairs"]


Pairs = ImageTextPairs | None
"""None pairs image i with text i."""
PairLogits = Float[Tensor, " pairs"]


class CrossAttentionModel(Model):
    """A re-ranker: patches attend to words, x + softmax(q kᵀ / √d_s) V, then a feed-forward layer and a score.

    q = W_i x and k = W_t t are the dual encoder's two projections; the value matrix, the feed-forward layer and the
    score are added. The score is added to the dual encoder's logit and initialised to zero, so that untrained it
    changes no order.

    Attributes:
        new_parameters: patterns of the parameters that are not the dual encoder's.
    """

    new_parameters: ClassVar[tuple[str, ...]] = ("values.*", "norm.*", "feed_forward.*", "score_norm.*", "score.*")

    def __init__(self, spec: CrossAttention, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec, self.towers = spec, DualEncoderModel(spec.towers, dropout)
        width = spec.towers.image_width
        self.values = nn.Linear(self.towers.text_projection.in_features, width, bias=False)
        self.norm = build_norm("layer", width, True)
        self.feed_forward = FeedForwardLayer(width, 4 * width, "gelu", bias=True)
        self.score_norm = build_norm("layer", width, False)  # what all pairs have in common changes no order
        self.score = nn.Linear(width, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def init_weights(self) -> None:
        """Draw initial weights of the modules added to the dual encoder; those of the score are zero."""
        for linear in (self.values, self.feed_forward.widen, self.feed_forward.narrow):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        nn.init.zeros_(self.score.weight)

    def attend_to_words(self, patches: Patches, words: Words, mask: WordMask, pairs: Pairs = None) -> HiddenPatches:
        """Return each pair's image patches after attention to the words of its text; arguments as in `forward`."""
        images, texts = pairs or (None, None)
        queries = _select(self.towers.queries(patches), images)[:, None]
        keys = _select(self.towers.keys(words), texts)[:, None]
        values = _select(self.values(words), texts)[:, None]
        scale = 1 / math.sqrt(queries.shape[-1])
        attended = attend(queries, keys, values, scale, causal=False, mask=_select(mask, texts)[:, None, None, :])[:, 0]
        return _select(patches, images) + self.dropout(attended)

    def forward(self, patches: Patches, words: Words, mask: WordMask, pairs: Pairs = None) -> PairLogits:
        """Return for each pair of an image and a text the score to be added to the dual encoder's logit.

        Args:
            patches: hidden vectors of image patches, as `DualEncoderModel.patches` returns them.
            words: hidden vectors of words, as `DualEncoderModel.words` returns them.
            mask: True at words, False at padding.
            pairs: index of the image and of the text of each pair; None pairs image i with text i.
        """
        hidden = self.attend_to_words(patches, words, mask, pairs)
        hidden = hidden + self.dropout(self.feed_forward(self.norm(hidden)))
        return self.score(self.score_norm(hidden).mean(1))[:, 0]

    def logits(self, patches: Patches, words: Words, mask: WordMask, pairs: Pairs = None) -> PairLogits:
        """Return the re-ranker's logit of each pair: the dual encoder's plus the score of `forward`, same arguments."""
        return self.dual_logits(patches, words, mask, pairs) + self(patches, words, mask, pairs)

    def dual_logits(self, patches: Patches, words: Words, mask: WordMask, pairs: Pairs = None) -> PairLogits:
        """Return the dual encoder's logit of each pair, before re-ranking; arguments as in `forward`."""
        images, texts = pairs or (None, None)
        image = _select(self.towers.project_image(patches), images)
        text = _select(self.towers.project_text(words, mask), texts)
        return self.towers.scale * torch.linalg.vecdot(image, text)


def _select(rows: Tensor, index: Tensor | None) -> Tensor:
    """Return rows[index], or all rows if `index` is None; gradients on a CPU are summed in a fixed order."""
    return rows if index is None else rows.index_select(0, index)


EmbeddedBlock = Float[np.ndarray, "rows shared"]


def embed_images(model: DualEncoderModel, pixels: UInt8[np.ndarray, "images channels side side"]) -> EmbeddedBlock:
    """Return a vector of length 1 in the shared space for each image of 8-bit pixels."""
    blocks = [np.zeros((0, model.spec.shared), dtype=np.float32)]
    with measuring(model) as device:
        batch_size = max(1, tokens_per_batch(device) // model.spec.grid**2)
        for start in range(0, len(pixels), batch_size):
            images = torch.from_numpy(np.array(pixels[start : start + batch_size])).to(device)
            blocks.append(model.image_vectors(images).float().cpu().numpy())
    return np.concatenate(blocks)


def embed_texts(model: DualEncoderModel, rows: TokenRows) -> EmbeddedBlock:
    """Return a vector of length 1 in the shared space for each row of tokens, in the order of the rows."""
    vectors = np.zeros((len(rows.lengths), model.spec.shared), dtype=np.float32)
    with measuring(model) as device:
        for group in batch_by_length(rows.lengths, tokens_per_batch(device)):
            tokens = torch.from_numpy(rows.pad(group)).to(device)
            vectors[group] = model.text_vectors(tokens).float().cpu().numpy()
    return vectors
