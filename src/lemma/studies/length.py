"""Recurrent against attention as the text grows longer (problem C4), by formula and measured."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lemma.ledger import Account, count, subject_of
from lemma.ledger.lines import Curve, Plot
from lemma.parts import Attention, AttentionShape, recurrent
from lemma.spec import LengthStudy
from lemma.studies.costs import Cost, CostResult, typeset
from lemma.studies.hardware import describe_hardware
from lemma.studies.heads import Vectors, vectors
from lemma.studies.measuring import device_named
from lemma.studies.timing import race, ratio, spread
from lemma.training import Observer

ATTENTION = "attention"
AS_LINEAR = 1.2  # an exponent up to which time is said to grow as T


def layer_of(kind: str, heads: int) -> Callable[..., nn.Module]:
    """What builds a layer of that kind from its width d: cells of width d, or causal attention with its output map."""

    def layer(d: int = 64) -> nn.Module:
        if kind == ATTENTION:
            return Attention(AttentionShape(d, heads))
        return recurrent(kind, d, d, 1, 1, 0.0)  # pyright: ignore[reportArgumentType]

    layer.inputs, layer.__name__ = vectors, kind  # pyright: ignore[reportFunctionMemberAccess]
    layer.ladders = {"d": [heads * number for number in (2, 3, 4, 5, 6)]}  # pyright: ignore[reportFunctionMemberAccess]
    return layer


def serial_steps(kind: str, length: int) -> int:
    """Steps that must wait for each other: T for a recurrent layer, one for attention."""
    return 1 if kind == ATTENTION else length


@dataclass(frozen=True)
class Contender:
    """One layer and one batch, ready to be timed."""

    layer: nn.Module
    stream: Vectors

    def infer(self) -> None:
        """Read the batch without a gradient."""
        with torch.no_grad():
            self.layer(self.stream)

    def learn(self) -> None:
        """Read the batch and go back."""
        self.layer(self.stream)[0].sum().backward()


def study_length(spec: LengthStudy, out: Path, observer: Observer) -> CostResult:
    """Count every contender by formula, then time all of them at every length."""
    accounts = {
        kind: count(subject_of(layer_of(kind, spec.heads), {"d": spec.width}), ["parameters", "flops"])
        for kind in spec.contenders
    }
    device = device_named(spec.device)
    observer.begin("timing lengths", len(spec.lengths), "lengths")
    rows = tuple(_rows(spec, accounts, device, observer))
    observer.end()
    result = CostResult(
        spec,
        describe_hardware(device),
        dict(_formulas(accounts)),
        f"Operations: {next(iter(accounts.values())).quantities['flops'].convention}.",
        rows,
        _base(spec),
        tuple(_conclude(spec, rows)),
        tuple(_plots(spec, rows)),
        out,
        "" if len(spec.lengths) > 1 else "No plot: one length makes no line. Give several, as in lengths=[16,32,64].",
    )
    result.save()
    return result


def _base(spec: LengthStudy) -> str:
    return ATTENTION if ATTENTION in spec.contenders else spec.contenders[0]


def _formulas(accounts: dict[str, Account]) -> Iterator[tuple[str, str]]:
    for kind, account in accounts.items():
        yield f"{kind}, parameters", typeset(account, "parameters")
        yield f"{kind}, operations forward", typeset(account, "flops")
        yield f"{kind}, steps in a row", "1" if kind == ATTENTION else "T"


def _rows(spec: LengthStudy, accounts: dict[str, Account], device: str, observer: Observer) -> Iterator[Cost]:
    base = _base(spec)
    for done, length in enumerate(spec.lengths):
        contenders = {kind: _contender(spec, kind, length, device) for kind in spec.contenders}
        inferring = race({kind: one.infer for kind, one in contenders.items()}, spec.repetitions, device)
        learning = race({kind: one.learn for kind, one in contenders.items()}, spec.repetitions, device)
        for kind in spec.contenders:
            yield Cost(
                {"T": length, "layer": kind},
                _counts(spec, accounts[kind], kind, length),
                spread(inferring[kind]),
                spread(learning[kind]),
                ratio(inferring[kind], inferring[base]),
                ratio(learning[kind], learning[base]),
            )
        observer.advance(done + 1)


def _contender(spec: LengthStudy, kind: str, length: int, device: str) -> Contender:
    torch.manual_seed(spec.seed)
    layer = layer_of(kind, spec.heads)(spec.width).to(device)
    return Contender(layer, torch.randn(spec.batch, length, spec.width, device=device))


def _counts(spec: LengthStudy, account: Account, kind: str, length: int) -> dict[str, int]:
    sizes = {"d": spec.width, "B": spec.batch, "T": length}
    counted = {name: account.quantities[name].at(sizes) or 0 for name in ("parameters", "flops")}
    return {**counted, "steps in a row": serial_steps(kind, length)}


def _conclude(spec: LengthStudy, rows: tuple[Cost, ...]) -> Iterator[str]:
    yield "Steps that must wait for each other: T in a recurrent layer, one in attention, whatever T."
    base, longest = _base(spec), max(spec.lengths)
    for kind in spec.contenders:
        mine = sorted((row for row in rows if row.place["layer"] == kind), key=lambda row: row.place["T"])
        if len(mine) > 1:
            yield _growth(kind, mine)
    for row in rows:
        if row.place["T"] == longest and row.place["layer"] != base:
            times = f"forward {row.forward_ratio} ×, forward and backward {row.both_ratio} ×"
            yield f"At T = {longest}, {row.place['layer']} takes {times} the time of {base}."
    if base == ATTENTION:
        yield from filter(None, (_crossing(kind, rows) for kind in spec.contenders if kind != base))


def _growth(kind: str, rows: list[Cost]) -> str:
    (before, now) = rows[-2:]
    exponent = math.log(now.both.median / before.both.median) / math.log(now.place["T"] / before.place["T"])
    grows = "about as T" if exponent < AS_LINEAR else "faster than T"
    where = f"from T = {before.place['T']} to {now.place['T']}"
    return f"{kind}: {where} its time (forward and backward) grows as T^{exponent:.2f}, {grows}."


def _crossing(kind: str, rows: tuple[Cost, ...]) -> str:
    """Between which lengths attention stops being the quicker one."""
    mine = sorted((row for row in rows if row.place["layer"] == kind), key=lambda row: row.place["T"])
    for before, now in pairwise(mine):
        if before.both_ratio.median > 1 > now.both_ratio.median:
            between = f"T = {before.place['T']} and T = {now.place['T']}"
            return f"Between {between} its T² products make attention slower than {kind} here."
    return ""


def _plots(spec: LengthStudy, rows: tuple[Cost, ...]) -> Iterator[Plot]:
    if len(spec.lengths) < 2:
        return
    for word, what in (("forward", "forward"), ("both", "forward and backward")):
        curves = tuple(_curve(kind, rows, word) for kind in spec.contenders)
        caption = (
            f"Time of one layer, {what}, against the length of the text (width {spec.width}, batch {spec.batch}); the "
            "band holds the middle half of the rounds."
        )
        yield Plot("length T", "milliseconds", curves, log_x=True, log_y=True, caption=caption)


def _curve(kind: str, rows: tuple[Cost, ...], word: str) -> Curve:
    mine: list[Any] = sorted((row for row in rows if row.place["layer"] == kind), key=lambda row: row.place["T"])
    times = [getattr(row, word).scaled(1e3) for row in mine]
    return Curve(
        kind,
        tuple(float(row.place["T"]) for row in mine),
        tuple(one.median for one in times),
        tuple(one.low for one in times),
        tuple(one.high for one in times),
        dots=True,
    )
