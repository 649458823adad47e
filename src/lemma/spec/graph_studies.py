"""The study of graph models: what the edges add, over seeds that draw the split and the first weights (problem D4)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lemma.errors import SpecError
from lemma.spec.base import Spec
from lemma.spec.graph import Graph, GraphSpec
from lemma.spec.named import named_table
from lemma.spec.recipe import Recipe
from lemma.spec.seeds import Seeds
from lemma.spec.study import Contender
from lemma.spec.words import nest


class GraphStudy(Spec):
    """Graph models compared on one graph: accuracy over random splits, each against the first."""

    kind: Literal["graph"] = "graph"
    name: str
    """The study's name."""
    question: str = ""
    """What it asks, in a sentence or two; stands at the top of the report."""
    graph: str = "cora"
    """A graph by name (cora, karate, blocks), a folder with nodes and edges, a table of edges, or a node-link JSON."""
    nodes_file: str | None = None
    """The table of nodes that belongs to a table of edges."""
    labelled: int | None = Field(default=None, ge=1)
    """Nodes of each class that are learned from; 20 if unset, fewer where the graph is small."""
    validation: int = Field(default=500, ge=1)
    """Nodes to validate on; fewer where the graph is small."""
    test: int = Field(default=1000, ge=1)
    """Nodes to judge by; fewer where the graph is small."""
    nodes: int | None = Field(default=None, ge=2)
    """Of the generated graph `blocks`: how many nodes."""
    edges: int | None = Field(default=None, ge=1)
    """Of the generated graph `blocks`: how many edges."""
    contenders: tuple[Contender, ...] = Field(
        default=(
            Contender(model="graph", name="two layers"),
            Contender(model="graph", name="rows sum to one", words={"normalise": "rows"}),
            Contender(model="graph", name="one layer", words={"depth": 1}),
            Contender(model="graph", name="no edges", words={"normalise": "alone"}),
        ),
        min_length=1,
    )
    """The models compared, each with words of its own."""
    words: dict[str, Any] = Field(default_factory=dict)
    """Words of the model or the recipe that all contenders share."""
    seeds: Seeds = tuple(range(1, 11))
    """How many seeds, from 1 on, or which: each draws a split and first weights."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        titles = [contender.title.lower() for contender in self.contenders]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"study.contenders: '{twice[0]}' stands there twice. Give each a `name` of its own.")
        return self

    def data(self, seed: int) -> GraphSpec:
        """The graph, its nodes divided by a seed."""
        own = ("graph", "nodes_file", "labelled", "validation", "test", "nodes", "edges")
        return GraphSpec(split=seed, **{name: getattr(self, name) for name in own})


GRAPH_STUDIES = {
    "graph": GraphStudy(
        name="graph",
        question="How well do a few labels name all nodes of a graph, and what of it is owed to the edges?",
    )
}

NOT_OF_RUNS = ("seed", "family", "features", "F", "classes", "K")
"""Words of models and recipes that the study sets itself."""


def read_graph_study(name: str | Path, words: Mapping[str, Any] | None = None) -> GraphStudy | None:
    """Read a study of graph models, built in or from a TOML file with `kind = "graph"`; None if it is another study.

    >>> read_graph_study("graph", {"seeds": 3}).seeds
    (1, 2, 3)
    """
    table = named_table(str(name), GRAPH_STUDIES, ("graph",))
    if table is None:
        return None
    given = nest(words or {})
    _refuse_words_of_runs(given)
    if isinstance(given.get("words"), Mapping):
        given["words"] = {**table.get("words", {}), **given["words"]}
    return GraphStudy.read({**table, **given}, f"study {table['name']}")


def _refuse_words_of_runs(given: Mapping[str, Any]) -> None:
    """Refuse a word of the model or the recipe that is given to the study itself, and say where it belongs."""
    of_runs = {*Graph.known_words(), *Recipe.known_words()} - {*GraphStudy.known_words(), *NOT_OF_RUNS}
    for word in given:
        if word in of_runs:
            raise SpecError(f"study graph: '{word}' is a word of the runs. Say words.{word}={given[word]}")
