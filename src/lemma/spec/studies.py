"""Studies by name, and studies from a file of one's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

from lemma.errors import SpecError, unknown
from lemma.spec.base import Spec
from lemma.spec.costs import COSTS
from lemma.spec.data import Characters, DataSpec, Words
from lemma.spec.graph_studies import GRAPH_STUDIES
from lemma.spec.label_studies import LABEL_STUDIES
from lemma.spec.study import Budget, Claim, Comparison, Contender, StudySpec
from lemma.spec.toml import read_toml

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
