"""Groups of a model's tensors that a sentence can name: one tensor, a module, all biases, all norms."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from lemma.counting.account import Part
from lemma.counting.polynomial import ONE, Polynomial, sum_polynomials

NORM_NAME = re.compile(r"norm|(^|[._])ln(_|\d|\.|$)")
LAYER_NUMBER = re.compile(r"_l(\d|\*).*$")
ALL_NORMS = "all norms"


@dataclass(frozen=True)
class PartGroup:
    """Parts of a quantity, with the noun phrase that sentences use for them."""

    name: str
    parts: tuple[Part, ...]

    @cached_property
    def total(self) -> Polynomial:
        return sum_polynomials(part.total for part in self.parts)

    @cached_property
    def paths(self) -> frozenset[str]:
        return frozenset(part.path for part in self.parts)

    @property
    def single_part(self) -> Part | None:
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def is_module(self) -> bool:
        """Return whether this is a module, a tensor or all modules of one name, not a kind of tensors."""
        return self.name.startswith(("'", "every"))


def group_parts(parts: Sequence[Part]) -> list[PartGroup]:
    """Return all groups with a natural name, simplest first. Of two names for the same parts the first is kept."""

    def select(condition: Callable[[Part], bool], candidates: Sequence[Part] = parts) -> list[Part]:
        return [part for part in candidates if condition(part)]

    prefixes: dict[str, list[str]] = {}  # of each path, shortest first, the path itself last
    components: dict[str, list[str]] = {}  # names on the way to each module
    for part in parts:
        *parents, leaf = names = part.path.split(".")
        prefixes[part.path] = [".".join(names[:length]) for length in range(1, len(names) + 1)]
        components[part.path] = parents if leaf in ("weight", "bias") else [*parents, LAYER_NUMBER.sub("", leaf)]
    parents = {prefix for path_prefixes in prefixes.values() for prefix in path_prefixes[:-1]}

    def tensor_name(part: Part) -> str:
        if not part.path:
            return "the model"
        # attention has projections inside it: what it computes itself must be distinguishable from all of it
        return f"'{part.path}' itself" if part.path in parents else f"'{part.path}'"

    modules = [
        (f"'{prefix}'", select(lambda part, prefix=prefix: prefix in prefixes[part.path]))
        for prefix in dict.fromkeys(prefix for path_prefixes in prefixes.values() for prefix in path_prefixes)
    ]
    # modules of one name wherever they are: attention in the encoder and in the decoder
    shared = dict.fromkeys(name for path_names in components.values() for name in path_names if name != "*")
    modules += [(f"every '{name}'", select(lambda part, name=name: name in components[part.path])) for name in shared]
    attentions = [name for name in shared if name.endswith(("attention", "attn"))]
    if len(attentions) > 1:  # self-attention and attention to a source together
        label = "every " + " and ".join(f"'{name}'" for name in attentions)
        modules.append((label, select(lambda part: not set(attentions).isdisjoint(components[part.path]))))
    candidates = [
        *((tensor_name(part), [part]) for part in parts),
        ("all biases", select(is_bias)),
        (ALL_NORMS, select(is_norm)),
        ("all biases but those of norms", select(lambda part: is_bias(part) and not is_norm(part))),
        ("the biases of all norms", select(lambda part: is_bias(part) and is_norm(part))),
        ("the weights of all norms", select(lambda part: is_norm(part) and not is_bias(part))),
        ("the norms of the layers", select(lambda part: is_norm(part) and part.repeats != ONE)),
        *modules,
        *((f"the biases of {name}", select(is_bias, members)) for name, members in modules),
        *(
            (f"the weights of {name}", select(lambda part: part.shape is not None and not is_bias(part), members))
            for name, members in modules
        ),
    ]
    groups: dict[frozenset[int], PartGroup] = {}
    for name, members in candidates:
        if members and len(members) < max(len(parts), 2):
            groups.setdefault(frozenset(map(id, members)), PartGroup(name, tuple(members)))
    return list(groups.values())


def module_path(path: str) -> str:
    """Return the module of a tensor; a tensor not named weight or bias stands for itself.

    >>> module_path("hidden.bias"), module_path("layers.weight_ih_l0")
    ('hidden', 'layers.weight_ih_l0')
    """
    module, _, leaf = path.rpartition(".")
    return module if leaf in ("weight", "bias") and module else path


def is_bias(part: Part) -> bool:
    """Return whether a part is a bias."""
    return "bias" in part.path.rpartition(".")[2]


def is_norm(part: Part) -> bool:
    """Return whether a part belongs to a normalization layer."""
    return NORM_NAME.search(module_path(part.path)) is not None
