"""What a study of costs comes to: formulas beside measured times, in a table, plots and a page."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.counting.account import Account
from lemma.counting.count import count
from lemma.counting.subject import subject_of
from lemma.errors import SpecError
from lemma.layers.attention import Attention, AttentionShape
from lemma.layers.recurrent import recurrent
from lemma.report.curves import Curve, Plot
from lemma.report.page import (
    csv_text,
    facts,
    grid,
    html_paragraph,
    json_text,
    page,
    plots_section,
    section,
    write_files,
)
from lemma.report.progress import Observer, Silent
from lemma.report.text import paragraph as flowing
from lemma.report.text import table
from lemma.spec.base import to_toml
from lemma.spec.studies import CostSpec, HeadsStudy, LengthStudy
from lemma.studies.cells import Spread, describe_hardware, race, ratio, spread
from lemma.studies.run import device_named

REPORT = "report.html"
JOINED = "\u2060–\u2060"  # a dash at which no line is broken: cells wrap before the bracket
HOW = (
    "Times: median of the rounds with the quartiles in brackets. All contenders run in one process, once a round, each "
    "round beginning with another one; ratios are taken round by round."
)
FOOTER = "Made by Lemma. This page needs no network and no script. The figures stand unrounded in results.json."


@dataclass(frozen=True)
class Cost:
    """One contender at one size: what it is, its counts by formula, and how long it took."""

    place: Mapping[str, Any]
    counts: Mapping[str, int]
    forward: Spread
    both: Spread
    """Forward and backward."""
    forward_ratio: Spread
    both_ratio: Spread

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; times in seconds."""
        spreads = {name: asdict(getattr(self, name)) for name in ("forward", "both", "forward_ratio", "both_ratio")}
        return {**self.place, **self.counts, **spreads}

    def flat(self) -> dict[str, Any]:
        """The same without tables inside, for CSV."""
        plain = self.to_dict()
        spreads = {name: value for name, value in plain.items() if isinstance(value, dict)}
        ends = {f"{name}_{end}": number for name, one in spreads.items() for end, number in one.items()}
        return {**{name: value for name, value in plain.items() if name not in spreads}, **ends}


@dataclass(frozen=True)
class CostResult:
    """The findings of a study of costs, in the folder `out`."""

    spec: CostSpec
    hardware: Mapping[str, str]
    formulas: Mapping[str, str]
    """Every formula by what it counts, read off the running module."""
    convention: str
    rows: tuple[Cost, ...]
    against: str
    """What the ratios compare with."""
    conclusion: tuple[str, ...]
    plots: tuple[Plot, ...]
    out: Path
    unplotted: str = ""
    """Why there is no plot, where there is none."""

    @property
    def report(self) -> Path:
        """Where the report is."""
        return self.out / REPORT

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        times = ["forward ms", f"× {self.against}", "forward+backward ms", f"× {self.against} "]
        return [*self.rows[0].place, *self.rows[0].counts, *times]

    def cells(self, row: Cost) -> list[str]:
        """One row as a person reads it."""
        times = [str(row.forward.scaled(1e3)), str(row.forward_ratio), str(row.both.scaled(1e3)), str(row.both_ratio)]
        return [*map(str, row.place.values()), *(f"{number:,}" for number in row.counts.values()), *times]

    def __str__(self) -> str:
        lines = table([self.header, *map(self.cells, self.rows)], left=(), rule=True)
        formulas = [f"{what}: {formula}" for what, formula in self.formulas.items()]
        hardware = "; ".join(self.hardware.values())
        parts = [self.spec.name, "", *lines, "", HOW, "", *formulas, self.convention, "", *self.conclusion, ""]
        plots = [self.unplotted] if self.unplotted else []
        return flowing("\n".join([*parts, *plots, hardware, f"Report: {self.report}"]))

    def _repr_html_(self) -> str:
        return self._table() + "".join(map(html_paragraph, [HOW, *self.conclusion]))

    def _table(self) -> str:
        whole = [[cell.replace("–", JOINED) for cell in self.cells(row)] for row in self.rows]
        return grid(self.header, [("", cells) for cells in whole], "wrapping")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "study": self.spec.to_dict(),
            "hardware": dict(self.hardware),
            "formulas": dict(self.formulas),
            "convention": self.convention,
            "against": self.against,
            "rows": [row.to_dict() for row in self.rows],
            "conclusion": list(self.conclusion),
            "report": str(self.report),
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write the table (Markdown, CSV), everything (JSON) and the report into a folder; return the report's path."""
        place = folder or self.out
        files = {
            "study.toml": to_toml(self.spec.to_dict()),
            "table.md": self._markdown(),
            "table.csv": self._csv(),
            "results.json": json_text(self.to_dict()),
            REPORT: self._page(),
        }
        write_files(place, files)
        return place / REPORT

    def _markdown(self) -> str:
        lines = [self.header, ["--:" for _ in self.header], *map(self.cells, self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{HOW}\n\n" + "".join(f"- {sentence}\n" for sentence in self.conclusion)

    def _csv(self) -> str:
        return csv_text([row.flat() for row in self.rows])

    def _page(self) -> str:
        kicker, question = html_paragraph("A study by Lemma", "kicker"), html_paragraph(self.spec.question, "question")
        head = f"<header>{kicker}<h1>{escape(self.spec.name)}</h1>{question if self.spec.question else ''}</header>"
        found = f'<div class="finding">{"".join(map(html_paragraph, self.conclusion))}</div>'
        formulas = section("By formula", facts(self.formulas), html_paragraph(self.convention, "note"))
        measured = section("Measured", self._table(), html_paragraph(HOW, "note"))
        where = section("Hardware", facts(self.hardware))
        parts = [
            head,
            found,
            plots_section(self.plots, self.unplotted),
            formulas,
            measured,
            where,
            f"<footer>{escape(FOOTER)}</footer>",
        ]
        return page(f"{self.spec.name}: a study", filter(None, parts))


def typeset(account: Account, name: str) -> str:
    """A formula as `lemma count` writes it: 3·d²."""
    return account.quantities[name].formula(account.order, "unicode")


# The cost of heads (problem D3): one head against many, by formula and measured.


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
class HeadsModel:
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


def _contender(spec: HeadsStudy, heads: int, length: int, path: str, device: str) -> HeadsModel:
    torch.manual_seed(spec.seed)
    part = bare_attention(spec.width, heads).to(device)
    return HeadsModel(part, path, torch.randn(spec.batch, length, spec.width, device=device))


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


# Recurrent against attention as the text grows longer (problem C4), by formula and measured.


ATTENTION = "attention"
AS_LINEAR = 1.2  # an exponent up to which time is said to grow as T


def layer_of(kind: str, heads: int) -> Callable[..., nn.Module]:
    """What builds a layer of that kind from its width d: cells of width d, or causal attention with its output map."""

    def layer(d: int = 64) -> nn.Module:
        if kind == ATTENTION:
            return Attention(AttentionShape(d, heads))
        return recurrent(kind, d, d, 1, 1, 0.0)  # pyright: ignore[reportArgumentType]

    layer.inputs, layer.__name__ = vectors, kind  # pyright: ignore[reportFunctionMemberAccess]
    layer.probe_sizes = {"d": [heads * number for number in (2, 3, 4, 5, 6)]}  # pyright: ignore[reportFunctionMemberAccess]
    return layer


def serial_steps(kind: str, length: int) -> int:
    """Steps that must wait for each other: T for a recurrent layer, one for attention."""
    return 1 if kind == ATTENTION else length


@dataclass(frozen=True)
class LengthModel:
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
    rows = tuple(_length_rows(spec, accounts, device, observer))
    observer.end()
    result = CostResult(
        spec,
        describe_hardware(device),
        dict(_formulas(accounts)),
        f"Operations: {next(iter(accounts.values())).quantities['flops'].convention}.",
        rows,
        _base(spec),
        tuple(_length_conclude(spec, rows)),
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


def _length_rows(spec: LengthStudy, accounts: dict[str, Account], device: str, observer: Observer) -> Iterator[Cost]:
    base = _base(spec)
    for done, length in enumerate(spec.lengths):
        contenders = {kind: _length_contender(spec, kind, length, device) for kind in spec.contenders}
        inferring = race({kind: one.infer for kind, one in contenders.items()}, spec.repetitions, device)
        learning = race({kind: one.learn for kind, one in contenders.items()}, spec.repetitions, device)
        for kind in spec.contenders:
            yield Cost(
                {"T": length, "layer": kind},
                _length_counts(spec, accounts[kind], kind, length),
                spread(inferring[kind]),
                spread(learning[kind]),
                ratio(inferring[kind], inferring[base]),
                ratio(learning[kind], learning[base]),
            )
        observer.advance(done + 1)


def _length_contender(spec: LengthStudy, kind: str, length: int, device: str) -> LengthModel:
    torch.manual_seed(spec.seed)
    layer = layer_of(kind, spec.heads)(spec.width).to(device)
    return LengthModel(layer, torch.randn(spec.batch, length, spec.width, device=device))


def _length_counts(spec: LengthStudy, account: Account, kind: str, length: int) -> dict[str, int]:
    sizes = {"d": spec.width, "B": spec.batch, "T": length}
    counted = {name: account.quantities[name].at(sizes) or 0 for name in ("parameters", "flops")}
    return {**counted, "steps in a row": serial_steps(kind, length)}


def _length_conclude(spec: LengthStudy, rows: tuple[Cost, ...]) -> Iterator[str]:
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
        curves = tuple(_length_curve(kind, rows, word) for kind in spec.contenders)
        caption = (
            f"Time of one layer, {what}, against the length of the text (width {spec.width}, batch {spec.batch}); the "
            "band holds the middle half of the rounds."
        )
        yield Plot("length T", "milliseconds", curves, log_x=True, log_y=True, caption=caption)


def _length_curve(kind: str, rows: tuple[Cost, ...], word: str) -> Curve:
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


# Whether what a study of costs will hold fits into memory, asked before anything is built.


FLOAT = 4  # bytes
SQUARES = 5  # T × T matrices a head while going back: scores, scaled, weights, and the gradients of two
VECTORS = 24  # vectors a token: inputs, four gates or queries, keys and values, their states and gradients
MATRICES = 16  # d × d weights of a contender, with their gradients
CONTAINER = Path("/sys/fs/cgroup/memory.max")


def check_memory(spec: CostSpec, device: str) -> None:
    """Refuse sizes that need more than the device has."""
    needed, there = bytes_needed(spec), bytes_there(device)
    if needed > there:
        sizes = f"width={spec.width}, batch={spec.batch}, lengths up to {max(spec.lengths)}"
        raise SpecError(
            f"study {spec.name}: {sizes} would need about {_gigabytes(needed)}; {device} has {_gigabytes(there)}. "
            "Take shorter lengths, or a smaller batch, width or number of heads."
        )


def bytes_needed(spec: CostSpec) -> int:
    """About what the largest race holds: Bh·T² where weights are written out, BT·d, and d² a contender.

    >>> from lemma.spec import COSTS
    >>> bytes_needed(COSTS["heads"]) < 200_000_000 < bytes_needed(COSTS["heads"].replace(lengths=[4096]))
    True
    """
    heads = isinstance(spec, HeadsStudy)
    length, contenders = max(spec.lengths), len(spec.heads) if heads else len(spec.contenders)
    squares = SQUARES * max(spec.heads) * length**2 if heads and "explicit" in spec.paths else 0
    tokens = VECTORS * length * spec.width
    return FLOAT * (spec.batch * (squares + tokens) + MATRICES * contenders * spec.width**2)


def bytes_there(device: str) -> float:
    """The memory of the GPU, or of this machine or the container it is in; without end where nobody says."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    if not hasattr(os, "sysconf"):
        return float("inf")
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _of_container())


def _of_container() -> float:
    try:
        return float(CONTAINER.read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return float("inf")


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


# Which study of costs a spec asks for.


def run_cost(spec: CostSpec, out: Path, observer: Observer | None = None) -> CostResult:
    """Count and time what the spec asks for, save table and report in the folder `out`, and return all of it."""
    watcher = observer or Silent()
    check_memory(spec, device_named(spec.device))
    return study_heads(spec, out, watcher) if isinstance(spec, HeadsStudy) else study_length(spec, out, watcher)
