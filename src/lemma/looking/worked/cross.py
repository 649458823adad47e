"""Cross-attention worked by hand: some vectors look at others, as images at sentences."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

import numpy as np
from jaxtyping import Float

from lemma.errors import SpecError, unknown
from lemma.looking.worked.alike import directions, largest
from lemma.looking.worked.blocks import Block, Blocks, Grid, Heading, Matrix
from lemma.looking.worked.cases import CrossCase
from lemma.looking.worked.maps import make_maps, stack
from lemma.looking.worked.numerals import numeral, printable
from lemma.looking.worked.reading import Examples, Given, list_examples, read_case
from lemma.looking.worked.result import Worked
from lemma.looking.worked.steps import Steps, attend, plain_rows
from lemma.looking.worked.views import describe_maps, matrices, outputs, row_arithmetic, weights


@dataclass(frozen=True)
class Preference:
    """What one vector prefers: by weight (and so by score), and by the cosine of query and key."""

    name: str
    by_weight: tuple[str, ...]
    """The most attended; several if they tie."""
    weight: float
    by_cosine: tuple[str, ...]
    cosine: float | None
    """None where a query or all keys are zero."""

    @property
    def agree(self) -> bool:
        """Whether both name the same."""
        return self.by_weight == self.by_cosine


@dataclass(frozen=True, eq=False)
class WorkedCross(Worked):
    """Cross-attention with every step, and what each vector prefers."""

    case: CrossCase
    source: str
    """The case as it was written."""
    steps: Steps
    cosines: Float[np.ndarray, "queries source"]
    preferences: tuple[Preference, ...]
    focus: tuple[int, ...]
    full: bool = False
    decimals: int = 4

    @property
    def heading(self) -> str:
        """The title of the case."""
        return printable(self.case.title) or "Cross-attention by hand"

    def shown(self) -> Blocks:
        """The arithmetic of the vectors in focus and the comparison; with `full` every matrix."""
        tables = matrices(self.steps, self.decimals) if self.full else []
        ends = [] if self.full else [weights(self.steps, self.decimals), outputs(self.steps, self.decimals)]
        return [*self._begin(), *tables, *self._arithmetic(), *ends, *self._end()]

    def drawn(self) -> Blocks:
        """Everything."""
        return [*self._begin(), *matrices(self.steps, self.decimals), *self._arithmetic(), *self._end()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        cosines = plain_rows(self.cosines)
        preferences = [asdict(one) | {"agree": one.agree} for one in self.preferences]
        steps = {"queries_from": list(self.steps.rows), "source": list(self.steps.columns), **self.steps.to_dict()}
        return {"case": self.case.to_dict(), "steps": steps, "cosines": cosines, "preferences": preferences}

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}

    def _begin(self) -> list[Block]:
        return [Heading(self.heading, 1), describe_maps(self.steps)]

    def _arithmetic(self) -> list[Block]:
        blocks: list[Block] = []
        for row in self.focus:
            blocks += [Heading(f"From {self.steps.rows[row]}"), *row_arithmetic(self.steps, row, self.decimals)]
        return blocks

    def _end(self) -> list[Block]:
        cosines = Matrix("cosine of q and k", self.steps.rows, self.steps.columns, self.cosines, decimals=self.decimals)
        return [Heading("What each prefers"), cosines, self._comparison()]

    def _comparison(self) -> Grid:
        rows = tuple(
            (
                one.name,
                " = ".join(one.by_weight),
                numeral(one.weight, self.decimals),
                " = ".join(one.by_cosine) or "none",
                "undefined" if one.cosine is None else numeral(one.cosine, self.decimals),
                "yes" if one.agree else "no",
            )
            for one in self.preferences
        )
        return Grid("", ("", "most attended", "α", "by cosine", "cosine", "agree"), rows, plain=True)


@overload
def cross_by_hand(example: None = None) -> Examples: ...
@overload
def cross_by_hand(
    example: Given,
    *,
    words: Sequence[str] | None = None,
    scaled: bool | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedCross: ...
def cross_by_hand(
    example: Given | None = None,
    *,
    words: Sequence[str] | None = None,
    scaled: bool | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedCross | Examples:
    """Work cross-attention out step by step, for an example by name, a TOML file or a table of the same words.

    q = W_Q x of the vectors that look, k = W_K y and v = W_V y of those looked at, α = softmax(q·k / √d_k).
    `words` (the names in focus) and `scaled` take the place of what the case says. Without an example, those that
    come with Lemma are listed.

    >>> cross_by_hand("e8").steps.products.round(4).tolist()
    [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]]
    """
    if example is None:
        return list_examples("cross")
    found = read_case(CrossCase, example, {"focus": words or None, "scaled": scaled})
    case, where = found.case, found.where
    rows, columns = tuple(map(printable, case.queries)), tuple(map(printable, case.source))
    inputs = stack(rows, list(case.queries.values()), "queries", where)
    source = stack(columns, list(case.source.values()), "source", where)
    maps = make_maps(case, inputs.shape[1], source.shape[1], where)
    steps = attend(rows, columns, inputs, source, maps, where=where)
    cosines = _cosines(steps)
    preferences = tuple(_preference(steps, cosines, row) for row in range(len(rows)))
    return WorkedCross(case, found.text, steps, cosines, preferences, _focus(case, where), full, decimals)


def _focus(case: CrossCase, where: str) -> tuple[int, ...]:
    """The places of the vectors in focus; all of them if none is named."""
    names = list(case.queries)
    for name in case.focus:
        if name not in names:
            raise SpecError(f"{where}: " + unknown("focus", name, names))
    return tuple(place for place, name in enumerate(names) if not case.focus or name in case.focus)


def _cosines(steps: Steps) -> Float[np.ndarray, "rows columns"]:
    """q·k / (|q| |k|); no number where one of them is zero."""
    return directions(steps.queries) @ directions(steps.keys).T


def _preference(steps: Steps, cosines: Float[np.ndarray, "rows columns"], row: int) -> Preference:
    known = cosines[row][~np.isnan(cosines[row])]
    best = float(known.max()) if known.size else None
    return Preference(
        steps.rows[row],
        largest(steps.columns, steps.weights[row]),
        float(steps.weights[row].max()),
        largest(steps.columns, cosines[row]) if best is not None else (),
        best,
    )
