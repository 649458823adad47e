"""What a study compares: models, a grid over their settings, seeds, a budget, and the claims it tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin

from pydantic import BeforeValidator, Field, model_validator

from lemma.errors import SpecError, unknown
from lemma.spec.base import Letter, Spec, named_table, nest, read_toml
from lemma.spec.data import BytePairs, Characters, DataSpec, GraphSpec, LabelsSpec, TokenizerSpec, Words
from lemma.spec.models import Graph, check_heads
from lemma.spec.recipe import Full, Method, Recipe

# The seeds of a study: one run is made with each.


def counted_seeds(value: Any) -> Any:
    """A number stands for so many seeds, from 1 on; a list for just these.

    >>> counted_seeds(3), counted_seeds([7])
    ((1, 2, 3), (7,))
    """
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
        return value
    if not value or (isinstance(value, int) and value < 0):
        raise ValueError(f"study.seeds = {value!r}: at least one seed is needed, as in seeds=3 or seeds=[7].")
    seeds = tuple(range(1, value + 1)) if isinstance(value, int) else tuple(value)
    if len({repr(seed) for seed in seeds}) < len(seeds):
        raise ValueError(f"study: seeds = {list(seeds)} must hold none twice.")
    return seeds


Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(counted_seeds), Field(min_length=1)]


# What a study compares: models, a grid over their words, seeds, an equal budget; and the claims it tests.


class Budget(Spec):
    """What every model of a study gets alike."""

    parameters: int | None = Field(default=None, ge=1)
    """Parameters: each model's width is chosen to come nearest to this."""
    tokens: int | None = Field(default=None, ge=1)
    """Training tokens: each model takes as many steps as this allows."""
    seconds: float | None = Field(default=None, gt=0)
    """Training seconds: each model's speed is measured first, then the steps that fit are taken."""

    @model_validator(mode="after")
    def _one_clock(self) -> Self:
        if self.tokens and self.seconds:
            raise ValueError("study.budget: give tokens or seconds, not both; each fixes the number of steps.")
        return self


class Contender(Spec):
    """One row of a study before its grid is opened: a model and what it changes."""

    model: str
    """A preset or a spec file."""
    name: str | None = None
    """What the row is called; the model if unset."""
    words: dict[str, Any] = Field(default_factory=dict)
    """Words of the spec or the recipe that this contender sets for itself; a size named here is not scaled."""

    @property
    def title(self) -> str:
        """What the row is called."""
        return self.name or self.model


class Comparison(Spec):
    """Two places of the grid and which of them is expected to have the lower perplexity."""

    at: dict[str, Any] = Field(min_length=1)
    """The place the claim speaks of: grid words with their values, or `contender` with a name."""
    against: dict[str, Any] = Field(min_length=1)
    """The place it is compared with, in the same words."""
    expects: Literal["lower", "not lower"] = "lower"
    """What is claimed of the perplexity `at` the one, seen from the other."""

    @model_validator(mode="after")
    def _same_words(self) -> Self:
        if self.at.keys() != self.against.keys() or self.at == self.against:
            raise ValueError(
                f"study.claims: at = {self.at} and against = {self.against} "
                "must name the same words, and differ in at least one value."
            )
        return self


class Claim(Spec):
    """A statement that the measured numbers bear out or not."""

    says: str
    """The claim in words."""
    comparisons: tuple[Comparison, ...] = Field(min_length=1)
    """What must hold for it, at every value of the grid words that are not named."""


class StudySpec(Spec):
    """Models compared on the same data at the same budget, over seeds."""

    name: str
    """The study's name."""
    question: str = ""
    """What it asks, in a sentence or two; stands at the top of the report."""
    data: DataSpec
    """The text, the tokenizer and what is held out: the same for every run."""
    contenders: tuple[Contender, ...] = Field(min_length=1)
    """The models compared."""
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Words and the values each takes; every contender is run at every combination."""
    words: dict[str, Any] = Field(default_factory=dict)
    """Words of the spec or the recipe that all runs share, where the model knows them."""
    seeds: Seeds = (1, 2)
    """How many seeds, from 1 on, or which: one run a seed."""
    budget: Budget = Budget()
    """What every model gets alike."""
    claims: tuple[Claim, ...] = ()
    """Statements to be judged from the numbers."""
    validations: int | None = Field(default=None, ge=1)
    """Full validations a run, the points of its learning curve; as the recipe has it if unset."""
    measures: tuple[Literal["positions", "attention"], ...] = ()
    """What else is measured of each trained model: `positions`, its loss against position past the trained length;
    `attention`, the entropy and the distance of each head."""
    beyond: int = Field(default=4, ge=1)
    """Up to how many times the trained length the loss is read against position."""
    prompt: str = ""
    """What the samples in the report begin with; unset, they begin like a line of the text."""
    sample_tokens: int = Field(default=200, ge=1)
    """Length of the samples in the report."""

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        for word, values in {**self.grid, "seeds": self.seeds}.items():
            if not values or len({repr(value) for value in values}) < len(values):
                raise ValueError(f"study: {word} = {list(values)} must hold at least one value, and none twice.")
        titles = [contender.title for contender in self.contenders]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"study.contenders: '{twice[0]}' stands there twice. Give each a `name` of its own.")
        return self

    @model_validator(mode="after")
    def _claims_fit(self) -> Self:
        places = {**self.grid, "contender": tuple(contender.title for contender in self.contenders)}
        for comparison in (comparison for claim in self.claims for comparison in claim.comparisons):
            for word, value in [*comparison.at.items(), *comparison.against.items()]:
                if word not in places:
                    raise ValueError(unknown("study.claims: the word", word, places))
                if value not in places[word]:
                    known = ", ".join(map(str, places[word]))
                    raise ValueError(
                        f"study.claims: {word} = {value!r} is not in the grid. Known: {known}. Or set claims=[]."
                    )
        return self


# Studies of classifiers: bodies compared (problem C3), and what pretraining without labels is worth (E4).


def _several(value: Any) -> Any:
    """One value or several, each once."""
    if isinstance(value, (int, str)):
        return (value,)
    return tuple(dict.fromkeys(value)) if isinstance(value, (list, tuple)) else value


def _contenders(value: Any) -> Any:
    """Models by their names, or with words of their own."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)):
        return value
    return tuple({"model": one} if isinstance(one, str) else one for one in several)


Names = Annotated[tuple[str, ...], BeforeValidator(_several), Field(min_length=1)]
Counts = Annotated[tuple[Annotated[int, Field(ge=2)], ...], BeforeValidator(_several), Field(min_length=1)]
Contenders = Annotated[tuple[Contender, ...], BeforeValidator(_contenders), Field(min_length=1)]


class LabelStudy(Spec):
    """What both share: labelled texts, one recipe for every run, seeds."""

    name: str
    """The study's name."""
    question: str = ""
    """What it asks, in a sentence or two; stands at the top of the report."""
    labels: str = "tweets"
    """Labelled texts by name, or a CSV, TSV or JSONL file of texts and labels."""
    text: str | None = None
    """The column of the texts; if unset, one called so, or the first of two."""
    label: str | None = None
    """The column of the labels; if unset, one called so, or the second of two."""
    tokenizer: TokenizerSpec = BytePairs()
    """How texts become tokens; the same for every run."""
    held_out: float = Field(default=0.1, gt=0, lt=0.5)
    """The share of the labelled texts held out for validation, and as many again for the test."""
    words: dict[str, Any] = Field(default_factory=dict)
    """Words of the body or the recipe that all classifiers share, where the body knows them."""
    seeds: Seeds = (1, 2, 3)
    """How many seeds, from 1 on, or which: one run a seed."""
    epochs: float = Field(default=8.0, gt=0)
    """How often the labelled texts are read, unless words.steps is given."""
    least_steps: int = Field(default=100, ge=1)
    """Steps that few labels are given at least."""
    validations: int = Field(default=5, ge=1)
    """Validations a run, the points of its learning curve."""

    def data(self, limit: int | None = None) -> LabelsSpec:
        """The labelled texts, or so many of them to learn from."""
        own = {name: getattr(self, name) for name in ("labels", "text", "label", "held_out")}
        return LabelsSpec(**own, tokenizer=self.tokenizer, limit=limit)


class ClassifiersStudy(LabelStudy):
    """Bodies of classifiers compared: how well they do and what they cost, each against the first (problem C3)."""

    kind: Literal["classifiers"] = "classifiers"
    contenders: Contenders = (Contender(model="lstm"), Contender(model="gru"))
    """The bodies compared: presets or spec files, each with words of its own if it needs them."""
    limit: int | None = Field(default=None, ge=2)
    """Learn from so many labelled texts only; all of them if unset."""
    tolerance: float = Field(default=0.02, gt=0, lt=1)
    """Accuracies that differ by no more than this are about the same."""
    repetitions: int = Field(default=20, ge=1, le=10_000)
    """Rounds in which inference is timed; in each every contender takes one turn."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        titles = [contender.title.lower() for contender in self.contenders]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"study.contenders: '{twice[0]}' stands there twice. Give each a `name` of its own.")
        return self


class PretrainingStudy(LabelStudy):
    """A classifier from scratch against one whose body learned texts without labels first (problem E4)."""

    kind: Literal["pretraining"] = "pretraining"
    body: str = "decoder"
    """What reads the texts: a preset or a spec file. An encoder learns what is hidden, all others what comes next."""
    unlabelled: Names = ("tweets", "film", "amazon", "news")
    """Texts without labels to learn first: labelled texts by name or as a table, or text files of one text a line."""
    counts: Counts = (100, 300, 1000, 3000)
    """Numbers of labels; what is more than there are means all of them."""
    method: Method = Full()
    """How the pretrained body is adapted: full, frozen, lora or adapters."""
    pretraining: dict[str, Any] = Field(default_factory=dict)
    """Words of the recipe of pretraining."""
    passes: float = Field(default=2.0, gt=0)
    """How often the texts without labels are read, unless pretraining.steps is given."""
    base_a_seed: bool = False
    """Whether each seed pretrains a body of its own, which counts that noise too and takes as many times as long."""


LabelStudySpec = ClassifiersStudy | PretrainingStudy
KINDS: dict[str, type[LabelStudySpec]] = {"classifiers": ClassifiersStudy, "pretraining": PretrainingStudy}
LABEL_STUDIES: dict[str, LabelStudySpec] = {
    "lstm-gru": ClassifiersStudy(
        name="lstm-gru",
        question="As classifiers of sentiment, do a GRU and an LSTM reach about the same accuracy, and is the GRU "
        "cheaper?",
        words={"width": 64, "hidden": 128, "batch": 32, "learning_rate": 2e-3, "weight_decay": 0.01, "dropout": 0.2},
        epochs=6,
    ),
    "pretraining": PretrainingStudy(
        name="pretraining",
        question="With few labels and many texts without, what is it worth to learn the texts first?",
        tokenizer=BytePairs(vocabulary=2048),
        words={
            "width": 128,
            "depth": 2,
            "pool": "mean",  # the last token's vector of a language model speaks of what comes next
            "batch": 32,
            "learning_rate": 1e-3,
            "weight_decay": 0.01,
            "dropout": 0.1,
            "keep": "last",  # so that no label but those counted has a say
        },
        epochs=6,
        pretraining={"batch": 32, "learning_rate": 2e-3},
        passes=3,
    ),
}


def read_label_study(name: str | Path, words: Mapping[str, Any] | None = None) -> LabelStudySpec | None:
    """Read a study of classifiers, built in or from a TOML file with `kind`; None if the name means another study.

    A dotted word reaches inside, and leaves what it does not name as it was.

    >>> read_label_study("lstm-gru", {"labels": "film", "words.steps": 50}).words["steps"]
    50
    """
    table = named_table(str(name), LABEL_STUDIES, KINDS)
    if table is None:
        return None
    given = {word: _joined(table.get(word), value) for word, value in nest(words or {}).items()}
    return KINDS[table["kind"]].read({**table, **given}, f"study {table['name']}")


def _joined(old: Any, new: Any) -> Any:
    """Change some words of a table; a choice of another kind begins with words of its own."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return dict(new) if new.get("kind", old.get("kind")) != old.get("kind") else {**old, **new}


# The study of graph models: what the edges add, over seeds that draw the split and the first weights (problem D4).


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


# Studies that train nothing: what a part costs by formula, beside the time it takes.


Size = Annotated[int, Field(ge=1, le=2**20)]  # what fits is asked of the machine; this keeps slips away


Sizes = Annotated[tuple[Size, ...], BeforeValidator(_several), Field(min_length=1)]
Cell = Literal["rnn", "lstm", "gru", "attention"]
Way = Literal["fused", "explicit"]


class CostStudy(Spec):
    """What all of them share: how often, how many sequences, where."""

    name: str
    """The study's name."""
    question: str = ""
    """What it asks, in a sentence or two; stands at the top of the report."""
    width: Annotated[Size, Letter("d")] = 128
    """Width of the vectors."""
    batch: Annotated[Size, Letter("B")] = 4
    """Sequences at once."""
    repetitions: int = Field(default=20, ge=1, le=10_000)
    """Rounds; in each every contender is timed once."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto takes the GPU if there is one."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Fixes the weights and the inputs."""


class HeadsStudy(CostStudy):
    """One head against many (problem D3): attention without an output map, 3d² parameters."""

    kind: Literal["heads"] = "heads"
    heads: Annotated[Sizes, Letter("h")] = (1, 2, 4, 8, 16)
    """Numbers of heads; each is compared with the first."""
    lengths: Annotated[Sizes, Letter("T")] = (64, 256)
    """Numbers of tokens."""
    paths: Annotated[tuple[Way, ...], BeforeValidator(_several), Field(min_length=1)] = ("fused", "explicit")
    """PyTorch's fused kernel, or explicit T × T weights with every softmax written out."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        for heads in self.heads:
            check_heads("heads.width", self.width, "heads.heads", heads)
        return self


class LengthStudy(CostStudy):
    """Recurrent against attention as the text grows longer (problem C4)."""

    kind: Literal["length"] = "length"
    lengths: Annotated[Sizes, Letter("T")] = (16, 32, 64, 128, 256, 512, 1024)
    """Numbers of tokens."""
    contenders: Annotated[tuple[Cell, ...], BeforeValidator(_several), Field(min_length=1)] = (
        "rnn",
        "lstm",
        "gru",
        "attention",
    )
    """What is compared: one layer of each, of equal width."""
    heads: Annotated[Size, Letter("h")] = 4
    """Attention heads."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        check_heads("length.width", self.width, "length.heads", self.heads)
        return self


CostSpec = HeadsStudy | LengthStudy
COST_KINDS: dict[str, type[CostSpec]] = {"heads": HeadsStudy, "length": LengthStudy}
COSTS: dict[str, CostSpec] = {
    "heads": HeadsStudy(
        name="heads",
        question="Do many heads cost more than one? Without an output map both have 3d² parameters and the same "
        "O(n²d + nd²) operations; many heads pay h softmaxes.",
    ),
    "length": LengthStudy(
        name="length",
        question="Recurrent layers take O(T) steps one after another, an attention layer does not. What does that "
        "cost as the text grows longer?",
    ),
}


def read_cost(name: str | Path, words: Mapping[str, Any] | None = None) -> CostSpec | None:
    """Read a study of costs, built in or from a TOML file with `kind`; None if the name means another study.

    >>> read_cost("heads", {"width": 64, "heads": [1, 2]}).heads
    (1, 2)
    """
    table = named_table(str(name), COSTS, COST_KINDS)
    if table is None:
        return None
    kind = COST_KINDS[table["kind"]]
    letters = kind.letters()
    given = {letters.get(word, word): value for word, value in (words or {}).items()}
    return kind.read({**table, **given}, f"study {table['name']}")


# Studies by name, and studies from a file of one's own.


FAMILIES_STUDY = StudySpec(
    name="families",
    question="With equal parameters and equal text, which family predicts Shakespeare's next character best?",
    data=DataSpec(text=("shakespeare",), tokenizer=Characters()),
    contenders=tuple(
        Contender(model=family) for family in ("feed-forward", "attentive", "rnn", "lstm", "gru", "decoder")
    ),
    words={"batch": 16, "stretch": 64, "warm_up": 20},
    budget=Budget(parameters=208_000, tokens=256_000),
    validations=5,
)

TABLE_A5 = StudySpec(
    name="table-a5",
    question=(
        "Does a Transformer's perplexity fall with layers, and does a longer context help only with enough of them? "
        "The source of this table states neither its text nor its recipe, so that its perplexities cannot be "
        "compared with these; its parameter counts and its two claims can."
    ),
    data=DataSpec(text=("speeches",), tokenizer=Words(vocabulary=7676)),
    contenders=(Contender(model="table-a5"),),
    grid={"depth": (2, 4), "context": (3, 5)},
    words={"batch": 8, "stretch": 32, "warm_up": 50},
    budget=Budget(tokens=64_000),
    validations=1,  # on two cores one pass over the validation text takes a minute or more
    claims=(
        Claim(
            says="Perplexity falls with layers.",
            comparisons=(Comparison(at={"depth": 4}, against={"depth": 2}),),
        ),
        Claim(
            says="A longer context helps only with enough layers.",
            comparisons=(
                Comparison(at={"depth": 4, "context": 5}, against={"depth": 4, "context": 3}),
                Comparison(at={"depth": 2, "context": 5}, against={"depth": 2, "context": 3}, expects="not lower"),
            ),
        ),
    ),
    prompt="The",
    sample_tokens=60,
)

POSITIONS_STUDY = StudySpec(
    name="positions",
    question=(
        "How do the five ways of telling where a token stands compare at an equal budget, and how does each fare when "
        "it reads up to four times the length that it was trained at?"
    ),
    data=DataSpec(text=("shakespeare",), tokenizer=Characters()),
    contenders=tuple(
        Contender(model="decoder", name=kind, words={"positions": kind})
        for kind in ("none", "learned", "sinusoidal", "rotary", "alibi")
    ),
    words={"width": 64, "depth": 2, "heads": 4, "context": 64, "batch": 8, "warm_up": 50, "learning_rate": 4e-3},
    seeds=(1, 2, 3),
    budget=Budget(tokens=400_000),
    validations=2,
    measures=("positions",),
)

SHAPING_STUDY = StudySpec(
    name="shaping",
    question=(
        "Do losses that shape attention help? Focus asks for low entropy, near for short distances. Under perfect "
        "optimisation they can only hurt; in practice they may help."
    ),
    data=DataSpec(text=("shakespeare",), tokenizer=Characters()),
    contenders=(
        Contender(model="decoder", name="plain"),
        Contender(model="decoder", name="focus", words={"focus": 0.01}),
        Contender(model="decoder", name="near", words={"near": 0.001}),
        Contender(model="decoder", name="both", words={"focus": 0.01, "near": 0.001}),
    ),
    words={"width": 64, "depth": 3, "heads": 4, "context": 64, "batch": 8, "warm_up": 50, "learning_rate": 4e-3},
    seeds=(1, 2, 3),
    budget=Budget(tokens=400_000),
    validations=2,
    measures=("attention",),
)

STUDIES: dict[str, StudySpec] = {
    study.name: study for study in (FAMILIES_STUDY, TABLE_A5, POSITIONS_STUDY, SHAPING_STUDY)
}

CLOCKS = ("tokens", "seconds")


def read_study(name: str | Path, words: Mapping[str, Any] | None = None) -> StudySpec:
    """Read a built-in study or a TOML file with the same fields, then let `words` change it.

    A dotted word reaches inside: `budget.tokens`, `data.text`, `words.batch`, `grid.depth`.

    >>> read_study("families", {"seeds": [1, 2, 3], "budget.seconds": 20}).budget
    Budget(parameters=208000, tokens=None, seconds=20.0)
    """
    where, table = _named(str(name))
    for word, value in (words or {}).items():
        _set(table, word, value, where)
    return StudySpec.read(table, where)


def _named(name: str) -> tuple[str, dict[str, Any]]:
    if name in STUDIES:
        return f"study {name}", STUDIES[name].to_dict()
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return str(path), {"name": path.stem, **read_toml(path)}
    raise SpecError(
        unknown("study", name, [*STUDIES, *COSTS, *LABEL_STUDIES, *GRAPH_STUDIES])
        + " A study file (name.toml) will do too."
    )


def _set(table: dict[str, Any], word: str, value: Any, where: str) -> None:
    """Put `value` at the dotted `word`; one clock of the budget takes the place of the other."""
    *path, last = word.split(".")
    kind: type[Spec] | None = StudySpec
    for step in path:
        kind = _inside(kind, step, where)
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise SpecError(f"{where}: '{word}' cannot be set: '{step}' holds no words of its own.")
    _inside(kind, last, where)
    if isinstance(value, str) and kind and get_origin(kind.model_fields[last].annotation) is tuple:
        value = [value]
    if path == ["budget"] and last in CLOCKS:
        for clock in CLOCKS:
            table.pop(clock, None)
    table[last] = value


def _inside(kind: type[Spec] | None, word: str, where: str) -> type[Spec] | None:
    """Check that the spec `kind` knows `word`, and return the kind of spec that stands there, if it is one."""
    if kind is None:
        return None
    if word not in kind.model_fields:
        raise SpecError(unknown(f"{where}: the word", word, kind.model_fields) + _hint(kind))
    inner = kind.model_fields[word].annotation
    return inner if isinstance(inner, type) and issubclass(inner, Spec) else None


def _hint(kind: type[Spec]) -> str:
    return " Words of the model or the recipe are written words.NAME=value." if kind is StudySpec else ""
