"""Shares of parts: compared with the parameters of real modules, and limits with amounts at very large sizes."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lemma
from lemma.counting.breakdown import name_parts
from lemma.counting.subject import resolve_subject
from lemma.errors import InputError


def shares_of(account: Any, name: str, **options: Any) -> Any:
    return next(b for b in account.breakdown(**options).quantities if b.quantity.name == name)


@pytest.fixture(scope="module")
def decoder() -> Any:
    return lemma.count("decoder", quantities=["parameters", "flops"])


def test_amounts_are_those_of_the_modules(decoder: Any) -> None:
    parts = shares_of(decoder, "parameters", at={"T": [32, 100]})
    assert [column.label for column in parts.columns] == ["T = 32", "T = 100"]
    for column in parts.columns:
        module = resolve_subject("decoder", {"T": column.sizes["T"]}).build(column.sizes)
        for name, amount in column.amounts.items():
            words = name.split(".")
            inside = [
                p
                for path, p in module.named_parameters()
                if all(w in ("*", s) for w, s in zip(words, path.split("."), strict=False))
            ]
            assert amount == sum(parameter.numel() for parameter in inside), name
        assert sum(column.fraction(name) or 0 for name in column.amounts) == 1


def test_limits_are_approached_at_large_sizes(decoder: Any) -> None:
    parts = shares_of(decoder, "flops")
    limits = {limit.symbol: limit for limit in parts.limits}
    assert limits["T"].fractions == {"layers.*.attention": 1}
    assert limits["d"].fractions == {"layers.*.attention": Fraction(1, 3), "layers.*.feed_forward": Fraction(2, 3)}
    sizes = dict(decoder.symbols)
    for symbol, limit in limits.items():
        if limit.reason:
            continue
        large = {**sizes, symbol: 10**12}
        large |= {name: int(default.at(large)) for name, default in limit.follows.items()}
        amounts = {part.name: part.polynomial.at(large) for part in parts.parts}
        for name, amount in amounts.items():
            assert abs(amount / sum(amounts.values()) - limit.fractions.get(name, 0)) < Fraction(1, 10**6), (
                symbol,
                name,
            )
            if name in limit.formulas:
                assert limit.formulas[name].at(sizes) == limit.fractions[name]


def test_small_parts_of_a_limit_are_one_row(decoder: Any) -> None:
    breakdown = shares_of(decoder, "parameters")
    limit = next(limit for limit in breakdown.limits if limit.symbol == "L")
    norms = sum(limit.fractions[f"layers.*.{name}_norm"] for name in ("attention", "feed_forward"))
    row = next(row for row in breakdown.limit_table.rows if row[2] == "2 other parts")
    assert row[1] == f"{float(100 * norms):.1f} %"


def test_shares_of_next_word_models_are_cancelled() -> None:
    account = lemma.count("table-a5", quantities=["flops"])
    text = str(account.breakdown(at={"d": [512]}))
    assert "self_attn       (2·d + N − 1)/(4·d + d_ff + 2·N − 2)" in text and "(N−1)·(4·d" not in text


class Chunked(nn.Module):
    """Attention to the last `window` positions: a number of the code, not of the factory."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.mlp = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        last = x[:, -700:]
        return self.mlp(x) + (x @ last.mT).softmax(-1) @ last


def chunked(d: int = 8) -> nn.Module:
    return Chunked(d)


chunked.inputs = lambda d, B=1, T=500: torch.zeros(B, T, d)  # pyright: ignore[reportFunctionMemberAccess]


def test_no_limit_is_stated_past_a_hidden_window() -> None:
    parts = shares_of(lemma.count(chunked, quantities=["flops"]), "flops", at={"T": [500, 5000]})
    (limit,) = (limit for limit in parts.limits if limit.symbol == "T")
    assert not limit.fractions and "does not hold at T" in limit.reason
    near, far = parts.columns
    linear, attention = 2 * 8 * 8, 4 * 8
    assert near.total == 500 * (linear + attention * 500) and far.total == 5000 * (linear + attention * 700)


def test_rounding_does_not_hide_the_limit() -> None:
    class Net(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.up, self.head = nn.Linear(d, 64 * -(-8 * d // 192), bias=False), nn.Linear(d, d, bias=False)

    def factory(d: int = 512) -> nn.Module:
        return Net(d)

    (limit,) = shares_of(lemma.count(factory, quantities=["parameters"]), "parameters", at={"d": [512]}).limits
    assert limit.fractions == {"up": Fraction(8, 11), "head": Fraction(3, 11)}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["h.*.attn.q", "h.*.mlp.up", "ln_f"], ["h.*.attn", "h.*.mlp", "ln_f"]),
        (["enc.block.*.layer.0.SelfAttention.q", "enc.block.*.layer.1.wi"],
         ["enc.block.*.layer.0.SelfAttention", "enc.block.*.layer.1.wi"]),
        (["m.layers.*.mlp.experts.*.w1", "m.layers.*.mlp.gate", "m.layers.*.ln"],
         ["m.layers.*.mlp", "m.layers.*.mlp", "m.layers.*.ln"]),
        (["m.stages.*.blocks.*.attn.q", "m.stages.*.blocks.*.mlp.up", "m.stages.*.down"],
         ["m.stages.*.blocks.*.attn", "m.stages.*.blocks.*.mlp", "m.stages.*.down"]),
        (["layers.0.attn", "layers.1….attn", "out"], ["layers.*.attn", "layers.*.attn", "out"]),
        (["layers.[full].*.attn", "layers.[local].*.attn", "layers.*.mlp"],
         ["layers.[full].*.attn", "layers.[local].*.attn", "layers.*.mlp"]),
        (["layers.[full].*.attn.mask", "layers.*.attn.q", "layers.*.mlp"],
         ["layers.*.attn", "layers.*.attn", "layers.*.mlp"]),
        (["", "head"], ["(itself)", "head"]),
    ],
)  # fmt: skip
def test_parts_are_the_modules_of_a_layer(paths: list[str], expected: list[str]) -> None:
    assert list(name_parts(paths).values()) == expected


def test_wrong_levels_and_sizes_are_refused(decoder: Any) -> None:
    with pytest.raises(InputError, match="unknown level 'foo'"):
        decoder.breakdown(by="foo")
    with pytest.raises(InputError, match="unknown size 'TT'"):
        decoder.breakdown(at={"TT": [4]})
    with pytest.raises(InputError, match="a whole number from 1 up is expected"):
        decoder.breakdown(at={"T": [0]})
