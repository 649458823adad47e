"""Studies of classifiers: bodies compared (problem C3), and what pretraining without labels is worth (E4)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lemma.spec.adaptation import Full, Method
from lemma.spec.base import Spec
from lemma.spec.data import BytePairs, TokenizerSpec
from lemma.spec.examples import LabelsSpec
from lemma.spec.named import named_table
from lemma.spec.seeds import Seeds
from lemma.spec.study import Contender
from lemma.spec.words import nest


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
