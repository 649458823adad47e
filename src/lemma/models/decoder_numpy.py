"""The decoding step of a single sequence on a CPU, in NumPy.

At batch 1 a small decoder waits for the calls of its operators, not for their arithmetic, and a call of NumPy takes a
third of the time of PyTorch's. The step reads the model's own weights and writes into the memory of `DecoderSlotCache`,
so that a sequence can pass from here to PyTorch and back between any two tokens. Large products are left to PyTorch:
NumPy has threads of its own, which would be in the way of others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.attention import Attention
from lemma.layers.feed_forward import FeedForwardLayer
from lemma.layers.positions import AlibiBias, LearnedEmbedding, NoEmbedding, RotaryEmbedding, SinusoidalEmbedding
from lemma.layers.recording import LISTENERS
from lemma.layers.state import State
from lemma.models.base import LARGE_MATRIX, benefits_from_threads, threaded_linear
from lemma.models.decoder import DecoderCache, DecoderModel, DecoderSlotCache
from lemma.models.transformer import TransformerLayer

SUPPORTED_MODULES = {
    *(DecoderModel, nn.ModuleList, TransformerLayer, Attention, FeedForwardLayer, nn.Dropout),
    *(nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm),
    *(NoEmbedding, LearnedEmbedding, SinusoidalEmbedding, RotaryEmbedding, AlibiBias),
}
INITIAL_CAPACITY = 256  # tokens, or twice those of the prompt; then it doubles
Vector = Float[np.ndarray, " width"]
VectorMap = Callable[[Vector], Vector]


def supports_numpy(model: nn.Module) -> TypeGuard[DecoderModel]:
    """Return whether `step_in_numpy` covers a model: supported modules, float32 on a CPU, no sliding windows."""
    if type(model) is not DecoderModel or not all(type(module) in SUPPORTED_MODULES for module in model.modules()):
        return False
    attentions: list[Attention] = [layer.attention for layer in model.layers]  # pyright: ignore
    shape = attentions[0].shape
    return (
        shape.key_query == shape.value_output == "separate"
        and shape.window is None
        and not shape.query_key_norm
        and model.embedding.max_norm is None
        and all(attention.shape == shape for attention in attentions)
        and {(weight.dtype, weight.device.type) for weight in model.parameters()} == {(torch.float32, "cpu")}
    )


def step_in_numpy(
    model: DecoderModel,
    fallback: Callable[[Tensor, State], tuple[Tensor, State]],
    tokens: Int[Tensor, "1 1"],
    state: State,
) -> tuple[Float[Tensor, "1 1 vocabulary"], State]:
    """Read one token of one sequence; return the logits after it and the new state.

    Args:
        fallback: the model's own step (tokens, state) → (logits, state), called instead once the window is full, and
            while attention is recorded or autocast is on.
        state: slots, or a cache before the first step and once the window is full.
    """
    needs_torch = LISTENERS.active or torch.is_autocast_enabled("cpu")
    if isinstance(state, DecoderSlotCache) and needs_torch:
        state = state.to_cache()
    window = math.inf if model.window is None else model.window
    if isinstance(state, DecoderCache):
        length = state.tokens.shape[1]
        if needs_torch or not state.layers or state.layers[0][0].dtype != torch.float32 or length == window:
            return fallback(tokens, state)
        state = DecoderSlotCache(state, int(min(max(INITIAL_CAPACITY, 2 * length), window)))
    assert isinstance(state, DecoderSlotCache)
    if state.is_full:
        state = state.resize(state.row_index, 1, int(min(2 * state.max_length, window)))
    if state.numpy_decoder is None:
        state.numpy_decoder = NumpyDecoder(model, state)
    with np.errstate(all="ignore"):  # who reads the logits sees whether they are numbers
        logits = torch.from_numpy(state.numpy_decoder.step(int(tokens), state.length)).view(1, 1, -1)
    state.length += 1
    return logits, state.tokens_only() if state.length == window else state


class NumpyDecoder:
    """The weights of a decoder and the slots of one sequence as arrays that share their memory."""

    def __init__(self, model: DecoderModel, slots: DecoderSlotCache) -> None:
        self.embedding, self.scale, self.logit_cap = to_array(model.embedding.weight), model.scale, model.logit_cap
        table = getattr(model.positions, "weight", getattr(model.positions, "table", None))
        self.position_table = None if table is None else to_array(table)
        self.norm, self.output = compile_norm(model.norm), compile_linear(model.output)
        first: Attention = model.get_submodule("layers.0.attention")  # pyright: ignore[reportAssignmentType]
        self.heads, self.kv_heads, self.width = first.heads, first.kv_heads, first.head_width
        self.score_scale = first.scale
        self.layers, self.tokens = [compile_layer(layer) for layer in model.layers], slots.tokens[0].numpy()
        self.caches = [tuple(tensor[0].numpy() for tensor in layer.tensors) for layer in slots.layers]
        self.rotary = self.position_bias = None
        if isinstance(first.turns, RotaryEmbedding):
            first.turns.ensure_length(slots.capacity)
            self.rotary, self.rotary_table = first.turns, to_array(first.turns.table)
        if isinstance(first.biases, AlibiBias):
            distances = np.arange(slots.capacity - 1, -1, -1, dtype=np.float32)
            bias = -(to_array(first.biases.slopes)[:, None] * distances)
            self.position_bias = bias.reshape(self.kv_heads, -1, slots.capacity)

    def step(self, token: int, position: int) -> Float[np.ndarray, " vocabulary"]:
        """Append a token id to the sequence, at index `position`; return the logits after it."""
        kv_heads, width, length = self.kv_heads, self.width, position + 1
        query_width, rotated_width = self.heads * width, (self.heads + kv_heads) * width
        product = np.matmul if query_width * length < LARGE_MATRIX * kv_heads else matmul
        bias = None if self.position_bias is None else self.position_bias[:, :, self.position_bias.shape[2] - length :]
        self.tokens[position] = token
        hidden = self.embedding[token]
        hidden = hidden if self.scale is None else hidden * self.scale
        hidden = hidden if self.position_table is None else hidden + self.position_table[position]
        for layer, (keys, values) in zip(self.layers, self.caches, strict=True):
            qkv = layer.project(layer.attention_norm(hidden))
            queries_keys = qkv[:rotated_width]
            if self.rotary is not None:
                heads = queries_keys.reshape(-1, width)
                queries_keys = rotate_heads(self.rotary, heads, self.rotary_table[position]).reshape(-1)
            keys[:, position] = queries_keys[query_width:].reshape(kv_heads, width)
            values[:, position] = qkv[rotated_width:].reshape(kv_heads, -1)
            queries = (queries_keys[:query_width] * self.score_scale).reshape(kv_heads, -1, width)
            scores = product(queries, keys[:, :length].swapaxes(1, 2))
            if bias is not None:
                scores += bias
            scores -= np.maximum.reduce(scores, 2, keepdims=True)
            np.exp(scores, out=scores)
            mixed = product(scores, values[:, :length])
            mixed /= np.add.reduce(scores, 2, keepdims=True)
            attended = hidden + layer.project_out(mixed.reshape(-1))
            hidden = layer.feed_forward(layer.feed_forward_norm(hidden if layer.is_parallel else attended))
            hidden += attended
        logits = self.output(self.norm(hidden))
        return logits if self.logit_cap is None else self.logit_cap * np.tanh(logits / self.logit_cap)


@dataclass(frozen=True, slots=True)
class NumpyLayer:
    """The norms, attention projections and feed-forward part of a layer, each a function of a NumPy vector."""

    attention_norm: VectorMap
    project: VectorMap  # to queries, keys and values
    project_out: VectorMap
    feed_forward_norm: VectorMap
    feed_forward: VectorMap
    is_parallel: bool


def compile_layer(layer: Any) -> NumpyLayer:
    """Return the parts of a `TransformerLayer` as functions of NumPy vectors that share its weights."""
    part: FeedForwardLayer = layer.feed_forward
    activation, narrow = part.activation, compile_linear(part.narrow)

    def activate(vector: Vector) -> Vector:
        return activation(torch.from_numpy(vector)).numpy()

    if part.gated:
        widen, inner = compile_linear(part.gate_widen), part.narrow.in_features

        def feed_forward(vector: Vector) -> Vector:
            widened = widen(vector)
            return narrow(activate(widened[:inner]) * widened[inner:])
    else:
        widen = compile_linear(part.widen)

        def feed_forward(vector: Vector) -> Vector:
            return narrow(activate(widen(vector)))

    return NumpyLayer(
        compile_norm(layer.attention_norm),
        compile_linear(layer.attention.query_key_value),
        compile_linear(layer.attention.output),
        compile_norm(layer.feed_forward_norm),
        feed_forward,
        layer.is_parallel,
    )


def compile_linear(layer: nn.Linear) -> VectorMap:
    """Return a function that applies a linear layer to a NumPy vector; large products are computed by PyTorch."""
    if layer.weight.numel() >= LARGE_MATRIX:
        threaded = benefits_from_threads(layer.weight)
        product = partial(threaded_linear, layer.weight, layer.bias) if threaded else layer.forward
        return lambda vector: product(torch.from_numpy(vector)[None])[0].numpy()
    weight = to_array(layer.weight)
    if layer.bias is None:
        return weight.dot
    bias = to_array(layer.bias)

    def linear(vector: Vector) -> Vector:
        output = weight.dot(vector)
        output += bias
        return output

    return linear


def compile_norm(norm: Any) -> VectorMap:
    """Return a function that applies a layer norm or an RMS norm (`norm`) to a NumPy vector."""
    weight, size, epsilon = to_array(norm.weight), norm.weight.numel(), float(norm.eps)
    if isinstance(norm, nn.RMSNorm):

        def rms_norm(vector: Vector) -> Vector:
            scaled = vector * weight
            scaled *= 1 / math.sqrt(vector.dot(vector) / size + epsilon)
            return scaled

        return rms_norm
    bias = None if norm.bias is None else to_array(norm.bias)
    mean_weights = np.full(size, 1 / size, dtype=np.float32)

    def layer_norm(vector: Vector) -> Vector:
        centred = vector - vector.dot(mean_weights)
        centred *= 1 / math.sqrt(centred.dot(centred) / size + epsilon)
        centred *= weight
        if bias is not None:
            centred += bias
        return centred

    return layer_norm


def rotate_heads(
    rotary: RotaryEmbedding, vectors: Float[np.ndarray, "heads width"], row: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "heads width"]:
    """Return the queries or keys of one position, rotated by the sines and cosines in `row` of the rotary table."""
    rotated, size = np.empty_like(vectors), rotary.rotary_dim
    rotary_part = vectors[:, :size]
    if rotary.halves:
        half, (sine, cosine) = size // 2, row
        rotated[:, :half], rotated[:, half:size] = rotary_part[:, half:], rotary_part[:, :half]
        rotated[:, :size] *= sine
        rotated[:, :size] += rotary_part * cosine
    else:
        sine, cosine = row[:, 0], row[:, 1]
        first, second = rotary_part[:, ::2], rotary_part[:, 1::2]
        rotated[:, :size:2] = first * cosine - second * sine
        rotated[:, 1:size:2] = first * sine + second * cosine
    rotated[:, size:] = vectors[:, size:]
    return rotated


def matmul(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the products of two stacks of matrices, computed by PyTorch's threads."""
    return torch.matmul(torch.from_numpy(left), torch.from_numpy(right)).numpy()


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a NumPy array that shares a tensor's memory."""
    return tensor.detach().numpy()
