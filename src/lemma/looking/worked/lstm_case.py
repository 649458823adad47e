"""What a person writes in a file to have an LSTM step worked out: gate values or weights, and what follows them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from lemma.errors import SpecError
from lemma.looking.worked.cases import Case, Rows, Vector
from lemma.looking.worked.mistakes import GATES

LETTERS = "ufoc"
"""Update, forget and output gate, and the candidate."""
SPELLINGS: dict[str, tuple[str, ...]] = {
    **{f"gamma_{letter}": (f"Γ_{letter}", f"G_{letter}", f"Gamma_{letter}") for letter in "ufo"},
    "candidate": ("c_tilde", "c̃"),
    "a_prev": ("h_prev",),
    "da_next": ("dh_next",),
}
"""Other ways to write a word."""
OF_WEIGHTS = ("a_prev", "x", *(f"{kind}_{letter}" for kind in "Wb" for letter in LETTERS))
"""The words of a case whose gates are worked out."""


def _as_vector(value: Any) -> Any:
    """A bare number is a cell of one unit."""
    return (value,) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _also(word: str) -> Any:
    return Field(validation_alias=AliasChoices(word, *SPELLINGS[word]))


Unit = Annotated[Vector, BeforeValidator(_as_vector)]


class LstmCase(Case):
    """What both kinds of case have in common: the state before, the output layer, and what arrives from later steps."""

    letter: Literal["a", "h"] = "a"
    """What the hidden state is called; h where the case says h_prev or dh_next."""
    c_prev: Unit
    """The cell state before the step."""
    W_y: Rows | None = None
    """The output layer, a row for each class."""
    b_y: Unit | None = None
    """Its bias; 0 if none is given."""
    y: Vector | None = None
    """The target: one-hot, or shares that add up to 1."""
    da_next: Annotated[Unit | None, _also("da_next")] = None
    """The gradient of a_t that arrives from the next step; 0 if none is given."""
    dc_next: Unit | None = None
    """The gradient of c_t that arrives from the next step; 0 if none is given."""

    @classmethod
    def read(cls, words: Mapping[str, Any], where: str) -> Self:
        """Check a case: one with gates given or one with weights given, as its words tell."""
        _refuse_twice(words, where)
        kind = _kind_of(words, where) if cls is LstmCase else cls
        return cast(Self, super(LstmCase, kind).read(words, where))

    @classmethod
    def known_words(cls) -> list[str]:
        """The words of the case, and h for a."""
        names = super().known_words()
        return [*names, *(word for name in names for word in SPELLINGS.get(name, ()) if "h_" in word)]

    @model_validator(mode="before")
    @classmethod
    def _read_letter(cls, words: Any) -> Any:
        says_h = isinstance(words, Mapping) and {"h_prev", "dh_next"} & set(words)
        return {"letter": "h", **words} if says_h else words

    def written(self, name: str) -> str:
        """A word with the case's own letter for the hidden state."""
        return name.replace("a_", f"{self.letter}_") if name in ("a_prev", "a_t", "da_next", "da_prev") else name


class GivenGates(LstmCase):
    """The values of the gates are given (problem E9)."""

    gamma_u: Annotated[Unit, _also("gamma_u")]
    """The update gate."""
    gamma_f: Annotated[Unit, _also("gamma_f")]
    """The forget gate."""
    gamma_o: Annotated[Unit, _also("gamma_o")]
    """The output gate."""
    candidate: Annotated[Unit, _also("candidate")]
    """The candidate c̃."""


class GivenWeights(LstmCase):
    """The weights are given; they act on [a_prev; x], one stacked on the other (problem C1)."""

    a_prev: Annotated[Unit, _also("a_prev")]
    """The hidden state before the step."""
    x: Unit
    """The input."""
    W_u: Rows
    """The update gate's weights, a row for each unit."""
    W_f: Rows
    """The forget gate's weights."""
    W_o: Rows
    """The output gate's weights."""
    W_c: Rows
    """The candidate's weights."""
    b_u: Unit | None = None
    """The update gate's bias; with none of the four, all are 0."""
    b_f: Unit | None = None
    """The forget gate's bias."""
    b_o: Unit | None = None
    """The output gate's bias."""
    b_c: Unit | None = None
    """The candidate's bias."""


def _refuse_twice(words: Mapping[str, Any], where: str) -> None:
    for name, others in SPELLINGS.items():
        given = [word for word in (name, *others) if word in words]
        if len(given) > 1:
            raise SpecError(f"{where}: {given[0]} and {given[1]} are the same word. Give one of them.")


def _kind_of(words: Mapping[str, Any], where: str) -> type[LstmCase]:
    """Gates given or weights given; words of both, or of neither, are a mistake."""
    gates, weights = _there(words, GATES), _there(words, OF_WEIGHTS)
    if gates and weights:
        raise SpecError(
            f"{where}: it holds {gates[0]} (gates given) and {weights[0]} (gates worked out from weights). "
            f"Leave out {', '.join(weights)}, or {', '.join(gates)}."
        )
    if not gates and not weights:
        raise SpecError(
            f"{where}: it holds neither gates nor weights. Give {', '.join(GATES)} and c_prev; or W_u, W_f, W_o, W_c, "
            "b_u, b_f, b_o, b_c, a_prev, c_prev and x. As in: lemma look lstm e9 --out mine.toml"
        )
    return GivenGates if gates else GivenWeights


def _there(words: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """The words among these that are there, as they are written."""
    return [word for name in names for word in (name, *SPELLINGS.get(name, ())) if word in words]
