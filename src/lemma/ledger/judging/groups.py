"""Parts that belong together in a sentence: one tensor, all biases, all norms, everything in a module."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from lemma.ledger.polynomial import ONE, Polynomial, total
from lemma.ledger.quantity import Part

NORM = re.compile(r"norm|(^|[._])ln(_|\d|\.|$)")
LAYER_NUMBER = re.compile(r"_l(\d|\*).*$")
ATTENTION = ("attention", "attn")
ALL_NORMS = "all norms"
Wanted = Callable[[Part], bool]


@dataclass(frozen=True)
class Group:
    """Some parts and what a sentence calls them."""

    name: str
    parts: tuple[Part, ...]

    @cached_property
    def whole(self) -> Polynomial:
        """All of it together."""
        return total(part.whole for part in self.parts)

    @property
    def part(self) -> Part | None:
        """The only part, where there is just one."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def twins(self) -> list[int]:
        """How many members of each part there are in a layer: 2 of the attentions of a decoder."""
        return [int(abs(part.repeats.common()[0])) if len(part.repeats.terms) == 1 else 1 for part in self.parts]

    @property
    def is_place(self) -> bool:
        """Whether it is a module, a tensor or namesakes of one, and not a kind of tensors."""
        return self.name.startswith(("'", "every"))


def groups_of(parts: Sequence[Part]) -> list[Group]:
    """All natural groups, the plainest first; of two that hold the same parts only the first."""
    places = [*_modules(parts), *_namesakes(parts), *_attentions(parts)]
    biases = [(f"the biases of {name}", _only(inside, is_bias)) for name, inside in places]
    weights = [(f"the weights of {name}", _only(inside, _is_weight)) for name, inside in places]
    named = [*_tensors(parts), *_kinds(parts), *places, *biases, *weights]
    kept: dict[frozenset[int], Group] = {}
    for name, inside in named:
        if inside and len(inside) < max(len(parts), 2):
            kept.setdefault(frozenset(map(id, inside)), Group(name, tuple(inside)))
    return list(kept.values())


def module_of(path: str) -> str:
    """The module in which a tensor stands; a tensor with a name of its own stands for itself.

    >>> module_of("hidden.bias"), module_of("layers.weight_ih_l0")
    ('hidden', 'layers.weight_ih_l0')
    """
    module, _, leaf = path.rpartition(".")
    return module if leaf in ("weight", "bias") and module else path


def is_bias(part: Part) -> bool:
    """Whether a part is a bias."""
    return "bias" in part.path.rpartition(".")[2]


def _is_weight(part: Part) -> bool:
    return part.shape is not None and not is_bias(part)


def is_norm(part: Part) -> bool:
    """Whether a part belongs to a norm."""
    return NORM.search(module_of(part.path)) is not None


def in_layers(part: Part) -> bool:
    """Whether there is more than one of it."""
    return part.repeats != ONE


def _tensors(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Each part alone; one that has others inside it, such as attention around its projections, is told from them."""
    above = {prefix for part in parts for prefix in _prefixes(part.path)[:-1]}
    names = [f"'{part.path}' itself" if part.path in above else f"'{part.path}'" for part in parts]
    return [(name if part.path else "the model", [part]) for name, part in zip(names, parts, strict=True)]


def _kinds(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    wanted: dict[str, Wanted] = {
        "all biases": is_bias,
        ALL_NORMS: is_norm,
        "all biases but those of norms": lambda part: is_bias(part) and not is_norm(part),
        "the biases of all norms": lambda part: is_bias(part) and is_norm(part),
        "the weights of all norms": lambda part: is_norm(part) and not is_bias(part),
        "the norms of the layers": lambda part: is_norm(part) and in_layers(part),
    }
    return [(name, _only(parts, want)) for name, want in wanted.items()]


def _modules(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    prefixes = {prefix: None for part in parts for prefix in _prefixes(part.path)}
    return [(f"'{prefix}'", [part for part in parts if _inside(part.path, prefix)]) for prefix in prefixes]


def _prefixes(path: str) -> list[str]:
    steps = path.split(".")
    return [".".join(steps[:length]) for length in range(1, len(steps) + 1)]


def _inside(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + ".")


def _namesakes(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Parts that have a step of their path in common, wherever it stands: attention in the encoder and the decoder."""
    steps = {step: None for part in parts for step in _steps(part.path) if step != "*"}
    return [(f"every '{step}'", [part for part in parts if step in _steps(part.path)]) for step in steps]


def _attentions(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """All attention of layers that have more than one kind of it: to themselves, and to a source."""
    found = {step: None for part in parts for step in _steps(part.path) if step.endswith(ATTENTION)}
    name = "every " + " and ".join(f"'{step}'" for step in found)
    return [(name, [part for part in parts if found.keys() & _steps(part.path)])] if len(found) > 1 else []


def _steps(path: str) -> list[str]:
    *above, leaf = path.split(".")
    return [*above, LAYER_NUMBER.sub("", leaf)] if leaf not in ("weight", "bias") else above


def _only(parts: Sequence[Part], wanted: Wanted) -> list[Part]:
    return [part for part in parts if wanted(part)]
