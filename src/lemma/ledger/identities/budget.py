"""Problem B7: a merged query–key matrix has J² parameters a head against 2IJ; equal at I = J/2."""

from fractions import Fraction

from pydantic import Field

from lemma.ledger.counting import count
from lemma.ledger.identities.identity import Identity
from lemma.ledger.identities.report import Finding, IdentityReport
from lemma.ledger.lines import Curve, Plot
from lemma.ledger.polynomial import Polynomial, symbol, total
from lemma.ledger.sources import factory_subject
from lemma.ledger.writing import write
from lemma.parts import Attention, AttentionShape
from lemma.spec import Spec

INWARD = "query"  # the maps of queries and keys bear it in their names; what else there is serves values and outputs


class Sizes(Spec):
    """Of which widths."""

    J: int = Field(default=64, ge=2, le=4096)
    """Width of the inputs."""
    I: int = Field(default=16, ge=1, le=4096)  # noqa: E741 - the source's letter
    """Width of a head's queries and keys."""


def separate(J: int, I: int) -> Attention:  # noqa: E741
    """One head with its query and its key matrix."""
    return Attention(AttentionShape(J, 1, I, value_output="merged", bias=False))


def merged(J: int, I: int) -> Attention:  # noqa: E741
    """One head with one query–key matrix."""
    return Attention(AttentionShape(J, 1, I, key_query="merged", value_output="merged", bias=False))


def query_key_parameters(factory: object, sizes: Sizes) -> Polynomial:
    """The parameters of queries and keys as a formula, read off the running module."""
    account = count(factory_subject(factory, {"J": sizes.J, "I": sizes.I}), ["parameters"])
    return total(part.whole for part in account.quantities["parameters"].parts if INWARD in part.path)


def run(sizes: Sizes) -> IdentityReport:
    """Read both formulas off our attention, and find where they meet."""
    apart, joined = (query_key_parameters(factory, sizes) for factory in (separate, merged))
    J, I = sizes.J, sizes.I  # noqa: E741
    order = ("I", "J")
    widths = sorted({1, max(1, J // 8), max(1, J // 4), J // 2, (J + 1) // 2, I, 3 * J // 4, J})
    return IdentityReport(
        "b7",
        IDENTITY.title,
        "A merged query–key matrix has J² parameters a head, separate ones 2IJ; equal at I = J/2.",
        sizes.to_dict(),
        (
            _count(f"separate, {write(apart, order, 'unicode')} at I = {I}, J = {J}", apart, I, J, 2 * I * J),
            _count(f"merged, {write(joined, order, 'unicode')} at J = {J}", joined, I, J, J**2),
            Finding("formulas of the module − 2IJ and J²: terms left", _terms_left(apart, joined), 0, 0.0, "exact"),
            _meeting(apart, joined, J),
        ),
        ("I", "separate, 2IJ", "merged, J²", "merged / separate"),
        tuple((width, 2 * width * J, J**2, J / (2 * width)) for width in widths),
        ("Usual heads are narrow (I = J/h), so that merging costs h/2 times as many; at I > J/2 it saves some.",),
        plot=_plot(J),
    )


def _count(says: str, formula: Polynomial, I: int, J: int, wanted: int) -> Finding:  # noqa: E741
    return Finding(says, int(formula.at({"I": I, "J": J})), wanted, 0.0, "a count")


def _terms_left(apart: Polynomial, joined: Polynomial) -> int:
    I, J = symbol("I"), symbol("J")  # noqa: E741
    return len((apart - 2 * I * J).terms) + len((joined - J**2).terms)


def _meeting(apart: Polynomial, joined: Polynomial, J: int) -> Finding:
    """At I = J/2, a fraction where J is odd: no head is that wide, but the formulas meet there all the same."""
    half = Fraction(J, 2)
    between = f" (J is odd: between I = {J // 2} and I = {J // 2 + 1})" if J % 2 else ""
    gap = (joined - apart).at({"I": half, "J": J})
    return Finding(f"at I = J/2 = {J / 2:g}{between}, merged − separate", float(gap), 0.0, 0.0, "exact")


def _plot(J: int) -> Plot:
    widths = tuple(float(width) for width in sorted({max(1, J * step // 16) for step in range(1, 17)}))
    apart = Curve("separate, 2IJ", widths, tuple(2 * width * J for width in widths))
    joined = Curve("merged, J²", widths, tuple(float(J**2) for _ in widths), dashed=True)
    caption = f"Query–key parameters of one head at J = {J}; the two meet at I = J/2 = {J / 2:g}."
    return Plot("width I of a head", "parameters", (apart, joined), rule=J / 2, caption=caption)


IDENTITY = Identity("b7", ("parameters", "merged-parameters"), "Parameters of a merged query–key matrix", Sizes, run)
