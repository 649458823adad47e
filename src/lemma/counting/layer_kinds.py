"""Kinds of layers: which of a module's repeated layers are alike, and how many there are of each kind at any depth.

Layers are grouped by what they are (classes, flags, names and shapes of parameters), never by their position. The
number of layers of a kind is an exact expression of the depth, such as ⌊L/6⌋, found from one deep module and proved at
other depths. With it, formulas need one polynomial per kind, however the kinds take turns.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import sha256
from itertools import combinations, product
from math import lcm
from typing import Any

from torch import nn

from lemma.counting.account import Part
from lemma.counting.derived import DerivedSize, fit_staircase
from lemma.counting.fit import (
    LAYER_NAMES,
    SUM_ONLY,
    Domain,
    GroupingError,
    PathGroup,
    ProbeSizes,
    Readings,
    Sizes,
)
from lemma.counting.polynomial import Polynomial, as_polynomial, sum_polynomials, symbol
from lemma.counting.subject import Subject
from lemma.errors import CountingError

DEPTHS = (26, 13)  # of modules whose layers are looked at
PROOF_DEPTHS = (2, 3, 5, 8, 12, 17)  # at which fewer layers must be the first of those of the deep module
MAX_PERIOD, MAX_KINDS = 12, 8
Signature = tuple[Any, ...]


def describe_layer(layer: nn.Module) -> tuple[Signature, Signature]:
    """Return what a layer is at all sizes (classes, flags, names), and its shapes and numbers at these sizes."""
    structure, sizes = [], []
    for path, part in layer.named_modules():
        attributes = {name: value for name, value in vars(part).items() if name[0] != "_" and name != "training"}
        flags = sorted(
            (name, value if isinstance(value, bool | str) else type(value).__name__)
            for name, value in attributes.items()
            if value is None or isinstance(value, bool | str | int | float)
        )
        tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        structure.append((path, type(part).__qualname__, tuple(flags), tuple(name for name, _ in tensors)))
        numbers = tuple(sorted((name, value) for name, value in attributes.items() if type(value) is int))
        sizes.append((path, numbers, tuple(tuple(tensor.shape) for _, tensor in tensors)))
    return tuple(structure), tuple(sizes)


def list_containers(module: nn.Module) -> Iterator[tuple[str, list[nn.Module]]]:
    """Yield path and members of each list of modules that is in no other list."""
    for path, part in module.named_modules():
        members = list(part._modules.items())
        is_inner = any(word.isdigit() for word in path.split("."))
        if path and members and not is_inner and all(name.isdigit() for name, _ in members):
            yield path, [member for _, member in members if member is not None]


def name_layers(layers: Sequence[nn.Module]) -> list[str]:
    """Return the hash of each layer's kind; kinds of one structure are numbered in the order in which they appear."""
    described = [describe_layer(layer) for layer in layers]
    values: dict[tuple[str, str], list[int]] = {}
    for _, sizes in described:
        for path, numbers, _ in sizes:
            for name, value in numbers:
                values.setdefault((path, name), []).append(value)
    counters = {key for key, numbers in values.items() if len({*numbers}) == len(numbers)}  # such as a layer's index
    seen: dict[Signature, dict[Signature, int]] = {}
    names = []
    for structure, sizes in described:
        kept = tuple(
            (path, tuple((name, value) for name, value in numbers if (path, name) not in counters), shapes)
            for path, numbers, shapes in sizes
        )
        same = seen.setdefault(structure, {})
        rank = same.setdefault(kept, len(same))
        names.append(sha256(f"{structure} {rank}".encode()).hexdigest()[:16])
    return names


def label_kinds(layers: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return a readable name for each kind, given a layer of each: a word in which it differs from all others."""
    words: dict[str, dict[str, list[str]]] = {}
    for kind, layer in layers.items():
        found: dict[str, list[str]] = {}
        for path, qualname, flags, _ in describe_layer(layer)[0]:
            for name, value in flags:
                if isinstance(value, str) and value not in ("int", "float", "NoneType"):
                    found.setdefault(f"{path}.{name}", []).append(value)
            found.setdefault(f"{path} class", []).append(qualname)
        words[kind] = found
    keys = list(dict.fromkeys(key for found in words.values() for key in found))

    def write(chosen: Sequence[str]) -> dict[str, str]:
        texts = {kind: "_".join(word for key in chosen for word in found.get(key, [])) for kind, found in words.items()}
        return {kind: re.sub(r"\W+", "_", text) or "layer" for kind, text in texts.items()}

    for chosen in [*((key,) for key in keys), *combinations(keys, 2)]:
        labels = write(chosen)
        if len({*labels.values()}) == len(labels):
            return labels
    labels = max((write((key,)) for key in keys), key=lambda labels: len({*labels.values()}))
    numbers: Counter[str] = Counter()
    for kind, label in labels.items():
        numbers[label] += 1
        labels[kind] = label if numbers[label] == 1 else f"{label}_{numbers[label]}"
    return labels


Count = tuple[Polynomial, tuple[DerivedSize, ...]]  # the number of layers of a kind, and the derived sizes in it


def find_count(name: str, series: Mapping[int, int]) -> tuple[Count, int] | None:
    """Return the number of layers of a kind as an expression of the depth `name`, and the depth from which it holds.

    `series` has the number at many depths. None is returned if no expression with at most two roundings holds from some
    depth on.

    >>> (count, rounded), start = find_count("L", {depth: depth - depth // 6 for depth in range(1, 27)})
    >>> count == symbol("L") - symbol("floor(L/6)"), start
    (True, 1)
    >>> find_count("L", {depth: max(depth - 3, 0) for depth in range(1, 27)})[1]
    3
    """
    depths = sorted(series)
    for roundings in (0, 2):  # a number that needs none from some depth on is preferred
        for start in depths[: len(depths) // 2]:
            tail = {depth: series[depth] for depth in depths if depth >= start}
            if (count := _fit_count(name, tail, roundings)) is not None:
                return count, start
    return None


def _fit_count(name: str, series: Mapping[int, int], roundings: int = 2) -> Count | None:
    """Return an expression that gives the numbers of `series` at all its depths, with at most `roundings` roundings.

    All of its period is seen twice, otherwise it would prove nothing about larger depths.
    """
    (first, low), *_, (last, high) = sorted(series.items())
    slope = Fraction(high - low, last - first)
    depth = symbol(name)
    if all(number == low + slope * (at - first) for at, number in series.items()):
        return slope * depth + (low - slope * first), ()
    if not roundings:
        return None
    for sign in (1, -1) if slope <= Fraction(2, 3) else (-1, 1):  # few full layers are said before many others
        rising = {at: number if sign == 1 else at - number for at, number in series.items()}
        staircase = fit_staircase(name, rising) if _is_periodic(rising) else None
        if staircase is not None and _period(staircase[0]) <= min(MAX_PERIOD, len(series) // 2):
            size, rest = staircase
            return sign * (symbol(size.name) + rest) + (depth if sign == -1 else 0), (size,)
    for period, sign in product(range(2, MAX_PERIOD + 1), (1, -1)) if roundings > 1 else ():
        for shift in range(period):
            size = DerivedSize("floor", ((depth + shift) / period,))
            remainder = {at: number - sign * size.at({name: at}) for at, number in series.items()}
            count = _fit_count(name, remainder, roundings - 1)
            if count is not None and 2 * lcm(period, *map(_period, count[1])) <= len(series):
                return count[0] + sign * symbol(size.name), (size, *count[1])
    return None


def _complexity(found: tuple[Count, int] | None, number: int) -> tuple[float, ...]:
    """Return how much it takes to say a number of layers: its roundings, its terms, then how large it is."""
    if found is None:
        return 3, 0, 0, 0, number
    (count, rounded), start = found
    return len(rounded), start, sum(size.kind == "ceil" for size in rounded), len(count.terms), number


def _is_periodic(series: Mapping[int, int]) -> bool:
    """Return whether a series rises by the same number over every period of some length."""
    for period in range(2, MAX_PERIOD + 1):
        rises = {series[at + period] - number for at, number in series.items() if at + period in series}
        if len(rises) == 1:
            return True
    return False


def _period(size: DerivedSize) -> int:
    """Return the denominator of the slope of a rounded size."""
    return max(number.denominator for number in size.operands[0].terms.values())


KIND = re.compile(r"(?<=\.)\[(\w+)\]\.|^\[(\w+)\]\.")  # the label of a kind in a path


def merge_kinds(parts: Sequence[Part]) -> list[Part]:
    """Merge parts that are equal in layers of all kinds: m·d in some and (L − m)·d in the others is L·d in all."""
    contents: dict[str, dict[str, set[Any]]] = {}  # by list and kind: what a layer has
    for part in parts:
        if kind := KIND.search(part.path):
            key = KIND.sub("", part.path), part.each, part.shape, part.note
            contents.setdefault(part.path[: kind.start()], {}).setdefault(kind[0], set()).add(key)
    merged: dict[tuple[Any, ...], Part] = {}
    for part in parts:
        kind, path = KIND.search(part.path), part.path
        if kind:
            layers = contents[path[: kind.start()]]
            key = KIND.sub("", path), part.each, part.shape, part.note
            same = [label for label, content in layers.items() if content == layers[kind[0]]]
            path = key[0] if all(key in content for content in layers.values()) else path.replace(kind[0], same[0])
        before = merged.get((path, part.each, part.shape, part.note))
        repeats = part.repeats if before is None or not kind else before.repeats + part.repeats
        merged[path, part.each, part.shape, part.note] = replace(part, path=path, repeats=repeats)
    return [*merged.values()]


@dataclass(frozen=True)
class Container:
    """A list of layers of several kinds.

    Attributes:
        depth: the symbol of its length.
        kinds: the labels of its layers in order, by depth.
        counts: the number of layers by label.
    """

    depth: str
    kinds: Mapping[int, Sequence[str]]
    counts: Mapping[str, Polynomial]

    def kind(self, depth: int, index: int) -> str:
        """Return the label of the layer with this index; a depth that was not looked at is a CountingError."""
        kinds = self.kinds.get(depth, self.kinds[max(self.kinds)])
        if len(kinds) < depth:
            raise CountingError(f"the kinds of {depth} layers are not known")
        return kinds[index]


@dataclass(frozen=True)
class LayerKinds:
    """The lists of a subject's modules with layers of several kinds, by path; most modules have none.

    Attributes:
        derived: rounded sizes in the numbers of layers, by name.
        domain: the depths at which the numbers of layers hold.
        depths: values of each depth at which all kinds occur.
    """

    containers: Mapping[str, Container] = field(default_factory=dict)
    derived: Mapping[str, DerivedSize] = field(default_factory=dict)
    domain: Domain = field(default_factory=Domain)
    depths: ProbeSizes = field(default_factory=dict)

    def rename(self, path: str, sizes: Sizes) -> str:
        """Insert the label of its kind into the path of a layer: layers.3.norm becomes layers.[full].3.norm.

        Entries of a cache, such as layers.3.keys, are renamed as the layers of the only list are.
        """
        for container, layers in self.containers.items():
            match = re.match(re.escape(container) + r"\.(\d+)(?=\.|$)", path)
            if match is None and len(self.containers) == 1:
                match = re.match(r"(?:\w+\.)?(\d+)(?=\.|$)", path)
            if match and int(match[1]) < sizes[layers.depth]:
                label = layers.kind(sizes[layers.depth], int(match[1]))
                return f"{path[: match.start(1)]}[{label}].{path[match.start(1) :]}"
        return path

    def rename_all(self, readings: Readings, sizes: Sizes) -> Readings:
        """Rename the paths of all readings."""
        return {self.rename(path, sizes): row for path, row in readings.items()} if self.containers else readings

    def _count(self, group: PathGroup) -> Polynomial | None:
        """Return the number of layers of the kind whose paths are in a group; None for other paths."""
        for layers in self.containers.values():
            for label, count in layers.counts.items():
                if f"[{label}].*" in group.pattern and group.subset != SUM_ONLY:
                    return count
        return None

    def per_layer(self, group: PathGroup, members: int, sizes: Sizes) -> int:
        """Return the number of members of a group in one layer, given that in all layers of its kind."""
        count = self._count(group)
        if count is None:
            return members
        values = {**sizes, **{name: size.at(sizes) for name, size in self.derived.items()}}
        num_layers = int(count.at(values))  # 0 where the rule that was found does not hold
        each, rest = divmod(members + group.excludes_one, num_layers) if num_layers else (0, members)
        if rest:
            raise GroupingError(group.pattern)
        return each

    def of_all_layers(self, group: PathGroup, per_layer: Polynomial) -> Polynomial:
        """Return the number of members of a group in all layers of its kind, given that in one layer."""
        count = self._count(group)
        return per_layer if count is None else per_layer * count - group.excludes_one


def find_layer_kinds(subject: Subject, base: Sizes) -> LayerKinds:
    """Find the lists of layers of several kinds in a subject's modules, and the number of layers of each kind.

    `base` are small sizes at which the module can be built. A list is left out if all of its layers are of one kind, or
    all but the first or the last, or if their numbers depend on other sizes than one depth.
    """
    containers: dict[str, Container] = {}
    derived: dict[str, DerivedSize] = {}
    only_at, at_least, depths = {}, {}, {}
    for depth in (name for name in subject.symbols if LAYER_NAMES.match(name)):
        lists = _read_lists(subject, base, depth)
        for path, (kinds, layers) in lists.items():
            deepest = max(kinds)
            requested = subject.symbols[depth]
            labels = label_kinds(layers)
            named = {at: [labels[kind] for kind in row] for at, row in kinds.items()}
            prefix = all(row == named[deepest][: len(row)] for row in named.values())
            numbers = range(1, deepest + 1) if prefix else sorted(named)
            rows = {at: named[deepest][:at] if prefix else named[at] for at in numbers}
            found = {label: find_count(depth, {at: rows[at].count(label) for at in rows}) for label in labels.values()}
            # the number that takes most to say is that of all other layers
            others = sorted(found, key=lambda label: _complexity(found[label], rows[deepest].count(label)))
            rest = others.pop()
            start = max((count[1] for label in others if (count := found[label])), default=0)
            complete = [at for at in rows if at >= start and {*rows[at]} == {*labels.values()}]
            if None in (found[label] for label in others) or requested < start or not complete:
                only_at[depth] = requested
                depths[depth] = [requested]
                counts = {label: as_polynomial(named[requested].count(label)) for label in labels.values()}
            else:
                if start > 1:
                    at_least[depth] = start
                exact = {label: count[0] for label in others if (count := found[label])}
                counts = {label: count for label, (count, _) in exact.items()}
                counts[rest] = symbol(depth) - sum_polynomials(counts.values())
                derived |= {size.name: size for _, rounded in exact.values() for size in rounded}
                depths[depth] = complete[:4]
            containers[path] = Container(depth, rows | named, counts)
    return LayerKinds(containers, derived, Domain(only_at, {}, at_least), depths)


def _read_lists(
    subject: Subject, base: Sizes, depth: str
) -> dict[str, tuple[dict[int, list[str]], dict[str, nn.Module]]]:
    """Return the lists of several kinds whose length is a depth: their kinds at several depths, and a layer of each."""

    def read(at: int, sizes: Sizes = base) -> dict[str, list[nn.Module]]:
        with suppress(CountingError):
            return dict(list_containers(subject.build({**{name: sizes[name] for name in subject.symbols}, depth: at})))
        return {}

    deepest = next((at for at in DEPTHS if read(at)), 0)
    lists = {path: layers for path, layers in read(deepest).items() if len(layers) == deepest}
    names = {path: name_layers(layers) for path, layers in lists.items()}
    mixed = {path: row for path, row in names.items() if min(len({*row[1:]}), len({*row[:-1]})) > 1}
    mixed = {path: row for path, row in mixed.items() if len({*row}) <= MAX_KINDS}
    if not mixed:
        return {}
    examples = {path: {name: lists[path][row.index(name)] for name in row} for path, row in mixed.items()}
    kinds: dict[str, dict[int, list[str]]] = {path: {deepest: row} for path, row in mixed.items()}
    requested = subject.symbols[depth]

    def add(depths: Iterable[int]) -> None:
        for at in depths:
            layers = read(at) if at not in kinds[next(iter(kinds))] else {}
            for path in kinds:
                if path in layers:
                    kinds[path][at] = name_layers(layers[path])
                    examples[path] |= {
                        name: layer
                        for name, layer in zip(kinds[path][at], layers[path], strict=True)
                        if name not in examples[path]
                    }

    add([*PROOF_DEPTHS, requested])
    if any(row != rows[deepest][: len(row)] for rows in kinds.values() for row in rows.values() if len(row) < deepest):
        add(range(1, deepest))
    return {path: (rows, examples[path]) for path, rows in kinds.items()}
