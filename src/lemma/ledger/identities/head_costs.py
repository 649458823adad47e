"""Problem D3: one head against many, without an output map: the same parameters and operations, more softmaxes."""

import torch
from pydantic import Field, model_validator
from torch import Tensor

from lemma.ledger.account import Account
from lemma.ledger.counting import count
from lemma.ledger.identities.identity import Identity
from lemma.ledger.identities.report import Finding, IdentityReport
from lemma.ledger.polynomial import symbol
from lemma.ledger.sources import factory_subject
from lemma.parts import Attention, AttentionShape, overhear
from lemma.spec import Spec


class Sizes(Spec):
    """How wide, how many heads, how long."""

    d: int = Field(default=64, ge=2, le=4096)
    """Width."""
    h: int = Field(default=8, ge=2, le=64)
    """Heads of the one that has several."""
    n: int = Field(default=32, ge=2, le=4096)
    """Tokens."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "Sizes":
        if self.d % self.h:
            raise ValueError(f"h = {self.h} does not divide d = {self.d}.")
        return self


def one_head(d: int) -> Attention:
    """One head of width d."""
    return Attention(AttentionShape(d, 1, value_output="none", bias=False, causal=False))


def many_heads(d: int, h: int) -> Attention:
    """Heads of width d/h, side by side."""
    return Attention(AttentionShape(d, h, value_output="none", bias=False, causal=False))


def _tokens(d: int, n: int = 32) -> Tensor:
    return torch.zeros(1, n, d)


one_head.inputs = _tokens  # pyright: ignore[reportFunctionMemberAccess]
many_heads.inputs = _tokens  # pyright: ignore[reportFunctionMemberAccess]


def run(sizes: Sizes) -> IdentityReport:
    """Read parameters and operations of both off our attention, and count the softmaxes of each."""
    accounts = {
        "single": _account(one_head, {"d": sizes.d, "n": sizes.n}),
        "multi": _account(many_heads, {"d": sizes.d, "h": sizes.h, "n": sizes.n}),
    }
    d, n = symbol("d"), symbol("n")
    products = 2 * (3 * n * d**2 + 2 * n**2 * d)
    rows = tuple(_row(name, account, sizes) for name, account in accounts.items())
    return IdentityReport(
        "d3",
        IDENTITY.title,
        "Single and multi-head attention both have 3d² parameters and take O(n²d + nd²) operations; multi-head pays h "
        "softmaxes a query.",
        sizes.to_dict(),
        (
            *(_terms(f"{name}: parameters − 3d²", one, "parameters", 3 * d**2) for name, one in accounts.items()),
            *(_terms(f"{name}: operations − 2(3nd² + 2n²d)", one, "flops", products) for name, one in accounts.items()),
            Finding(
                "softmaxes: multi / single", _softmaxes(sizes, sizes.h) / _softmaxes(sizes, 1), sizes.h, 0, "a count"
            ),
        ),
        ("attention", "parameters", "operations", "softmaxes"),
        rows,
        ("Operations: those of matrix products, a multiply–add counted as two. Time: lemma study heads.",),
    )


def _account(factory: object, sizes: dict[str, int]) -> Account:
    return count(factory_subject(factory, sizes), ["parameters", "flops"])


def _terms(says: str, account: Account, quantity: str, wanted: object) -> Finding:
    left = account.quantities[quantity].polynomial - wanted  # pyright: ignore[reportOperatorIssue]
    return Finding(f"{says}: terms left", len(left.terms), 0, 0, "a formula")


def _row(name: str, account: Account, sizes: Sizes) -> tuple[str | int, ...]:
    numbers = [int(account.quantities[one].polynomial.at(account.symbols)) for one in ("parameters", "flops")]
    return name, *numbers, _softmaxes(sizes, 1 if name == "single" else sizes.h)


def _softmaxes(sizes: Sizes, heads: int) -> int:
    """How many rows of weights there are in one pass."""
    part = many_heads(sizes.d, heads)
    with torch.no_grad(), overhear() as records:
        part(_tokens(sizes.d, sizes.n))
    return sum(record.weights().shape[:-1].numel() for record in records)


IDENTITY = Identity("d3", ("single-multi", "heads-cost"), "Single against multi-head attention", Sizes, run)
