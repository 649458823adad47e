"""A body that reads a sentence along its dependency tree (problem D4 applied to language)."""

from typing import Annotated, Literal

from pydantic import Field

from lemma.spec.base import Letter
from lemma.spec.family import Family, Size


class Tree(Family):
    """Word vectors, and layers of graph convolution over the sentence's dependency tree; only ever a body."""

    family: Literal["tree"] = "tree"
    width: Annotated[Size, Letter("d")] = 64
    """Width of the word vectors and of every layer."""
    depth: Annotated[int, Letter("L"), Field(ge=0)] = 2
    """Number of graph layers: how many arcs away a word still sees; 0 reads the words alone."""
