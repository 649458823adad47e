"""The parts models are made of: one idea a file."""

from lemma.parts.attention import CausalAttention, KeyValues, WindowHead
from lemma.parts.feed_forward import ACTIVATIONS, FeedForwardPart
from lemma.parts.norm import norm
from lemma.parts.positions import positions, sinusoids
from lemma.parts.recurrent import Hidden, recurrent
from lemma.parts.state import State, bytes_of
from lemma.parts.window import Window, present, slide

__all__ = [
    "ACTIVATIONS",
    "CausalAttention",
    "FeedForwardPart",
    "Hidden",
    "KeyValues",
    "State",
    "Window",
    "WindowHead",
    "bytes_of",
    "norm",
    "positions",
    "present",
    "recurrent",
    "sinusoids",
    "slide",
]
