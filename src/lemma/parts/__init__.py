"""The parts models are made of: one idea a file."""

from lemma.parts.attend import attend
from lemma.parts.attention import Attention, AttentionShape, Memory
from lemma.parts.feed_forward import ACTIVATIONS, FeedForwardPart
from lemma.parts.graph import Adjacency, GraphConvolution, adjacency_of
from lemma.parts.norm import norm
from lemma.parts.positions import alibi_slopes, positions, rotate, sinusoids
from lemma.parts.recurrent import Hidden, recurrent
from lemma.parts.sparse import Sparse
from lemma.parts.state import State, bytes_of
from lemma.parts.tap import AttentionRecord, overhear, tap
from lemma.parts.window import Window, present, slide
from lemma.parts.window_head import WindowHead

__all__ = [
    "ACTIVATIONS",
    "Adjacency",
    "Attention",
    "AttentionRecord",
    "AttentionShape",
    "FeedForwardPart",
    "GraphConvolution",
    "Hidden",
    "Memory",
    "Sparse",
    "State",
    "Window",
    "WindowHead",
    "adjacency_of",
    "alibi_slopes",
    "attend",
    "bytes_of",
    "norm",
    "overhear",
    "positions",
    "present",
    "recurrent",
    "rotate",
    "sinusoids",
    "slide",
    "tap",
]
