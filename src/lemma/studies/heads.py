"""The cost of heads (problem D3): one head against many, by formula and measured."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from lemma.ledger import Account, count, subject_of
from lemma.ledger.lines import Curve, Plot
from lemma.parts import Attention, AttentionShape
from lemma.spec import HeadsStudy
from lemma.studies.costs import Cost, CostResult, typeset
from lemma.studies.hardware import describe_hardware
from lemma.studies.measuring import device_named
from lemma.studies.timing import Spread, race, ratio, spread
from lemma.training import Observer

Vectors = Float[Tensor, "batch time width"]


def vectors(d: int, B: int = 1, T: int = 64) -> Vectors:
    """What attention is called with."""
    return torch.zeros(B, T, d)


def bare_attention(d: int = 64, h: int = 4) -> Attention:
    """Attention as problem D3 counts it: queries, keys and values, no biases, no output map."""
    return Attention(AttentionShape(d, h, causal=False, value_output="none", bias=False))


bare_attention.inputs = vectors  # pyright: ignore[reportFunctionMemberAccess]


def explicit(part: Attention, stream: Vectors) -> Vectors:
    """The same attention with its T × T weights written out, one softmax a head and row."""
    batch, time, width = stream.shape
    joined = part.query_key_value(stream).view(batch, time, 3, part.heads, -1).permute(2, 0, 3, 1, 4)
    queries, keys, values = joined.unbind(0)
    weights = (queries @ keys.mT * part.scale).softmax(-1)
    return (weights @ values).transpose(1, 2).reshape(batch, time, width)


@dataclass(frozen=True)
class Contender:
    """One number of heads on one path, ready to be timed."""

    part: Attention
    path: str
    stream: Vectors

    def forward(self) -> Vectors:
        """Attend."""
        return explicit(self.part, self.stream) if self.path == "explicit" else self.part(self.stream)[0]

    def infer(self) -> None:
        """Attend without a gradient."""
        with torch.no_grad():
            self.forward()

    def learn(self) -> None:
        """Attend and go back."""
        self.forward().sum().backward()


def study_heads(spec: HeadsStudy, out: Path, observer: Observer) -> CostResult:
    """Count by formula, then time every number of heads on every path at every length."""
    account = count(subject_of(bare_attention, {"d": spec.width, "h": spec.heads[0]}), ["parameters", "flops"])
    device = device_named(spec.device)
    observer.begin("timing heads", len(spec.lengths) * len(spec.paths), "races")
    rows = tuple(_rows(spec, account, device, observer))
    observer.end()
    result = CostResult(
        spec,
        describe_hardware(device),
        {"parameters": typeset(account, "parameters"), "operations, forward": typeset(account, "flops")},
        f"Operations: {account.quantities['flops'].convention}. Softmax apart: h·B·T rows, h·B·T² exponentials.",
        rows,
        f"h={spec.heads[0]}",
        tuple(_conclude(spec, account, rows)),
        tuple(_plot(spec, rows, path) for path in spec.paths) if len(spec.heads) > 1 else (),
        out,
        "" if len(spec.heads) > 1 else "No plot: one number of heads makes no line. Give several, as in heads=[1,2,4].",
    )
    result.save()
    return result


def _rows(spec: HeadsStudy, account: Account, device: str, observer: Observer) -> Iterator[Cost]:
    for done, (length, path) in enumerate([(length, path) for length in spec.lengths for path in spec.paths]):
        contenders = {str(heads): _contender(spec, heads, length, path, device) for heads in spec.heads}
        inferring = race({name: one.infer for name, one in contenders.items()}, spec.repetitions, device)
        learning = race({name: one.learn for name, one in contenders.items()}, spec.repetitions, device)
        first = str(spec.heads[0])
        for heads in spec.heads:
            ones, both = inferring[str(heads)], learning[str(heads)]
            yield Cost(
                {"T": length, "h": heads, "path": path},
                _counts(account, spec, heads, length),
                spread(ones),
                spread(both),
                ratio(ones, inferring[first]),
                ratio(both, learning[first]),
            )
        observer.advance(done + 1)


def _contender(spec: HeadsStudy, heads: int, length: int, path: str, device: str) -> Contender:
    torch.manual_seed(spec.seed)
    part = bare_attention(spec.width, heads).to(device)
    return Contender(part, path, torch.randn(spec.batch, length, spec.width, device=device))


def _counts(account: Account, spec: HeadsStudy, heads: int, length: int) -> Mapping[str, int]:
    sizes = {"d": spec.width, "h": heads, "B": spec.batch, "T": length}
    counted = {name: account.quantities[name].at(sizes) or 0 for name in ("parameters", "flops")}
    return {**counted, "exponentials": heads * spec.batch * length**2}


def _conclude(spec: HeadsStudy, account: Account, rows: tuple[Cost, ...]) -> Iterator[str]:
    for name, what in (("parameters", "Parameters"), ("flops", "Operations")):
        figure = account.quantities[name]
        free = "h" not in {symbol for monomial in figure.polynomial.terms for symbol, _ in monomial}
        said = "whatever the number of heads: the claim holds." if free else "which depends on h: the claim is false."
        yield f"{what} by formula: {typeset(account, name)}, {said}"
    first, most = spec.heads[0], max(spec.heads)
    for row in rows:
        if row.place["h"] == most and len(spec.heads) > 1:
            where = f"T = {row.place['T']}, {row.place['path']}"
            times = f"forward {row.forward_ratio} ×, forward and backward {row.both_ratio} ×"
            said = verdict_on(row.both_ratio)
            yield f"{where}: {row.place['h']} heads take {times} the time of {_heads(first)}: {said}."


def verdict_on(times: Spread) -> str:
    """Say what a ratio of times means, given its quartiles.

    >>> verdict_on(Spread(1.3, 1.2, 1.4)), verdict_on(Spread(1.0, 0.9, 1.1))
    ('slower', 'no difference beyond the spread')
    """
    if times.low > 1:
        return "slower"
    return "faster" if times.high < 1 else "no difference beyond the spread"


def _heads(number: int) -> str:
    return "one" if number == 1 else str(number)


def _plot(spec: HeadsStudy, rows: tuple[Cost, ...], path: str) -> Plot:
    curves = []
    for length in spec.lengths:
        mine = [row for row in rows if row.place["T"] == length and row.place["path"] == path]
        for title, ratios in (
            ("forward", [row.forward_ratio for row in mine]),
            ("both", [row.both_ratio for row in mine]),
        ):
            shown = "forward" if title == "forward" else "forward+backward"
            curves.append(_curve(f"T = {length}, {shown}", [row.place["h"] for row in mine], ratios, title == "both"))
    caption = (
        f"Time of h heads as a multiple of that of {_heads(spec.heads[0])}, {path} attention, width {spec.width}; "
        "the band holds the middle half of the rounds. By formula the products are the same for all: 1."
    )
    return Plot("heads h", f"time / time of h = {spec.heads[0]}", tuple(curves), log_x=True, caption=caption)


def _curve(title: str, x: list[int], ratios: list[Spread], dashed: bool) -> Curve:
    columns = zip(*((one.median, one.low, one.high) for one in ratios), strict=True)
    medians, lows, highs = (tuple(column) for column in columns)
    return Curve(title, tuple(map(float, x)), medians, lows, highs, dashed, dots=True)
