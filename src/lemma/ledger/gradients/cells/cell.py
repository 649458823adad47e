"""A cell: what it is given, and its forward equations in the language that derivations are written in."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from lemma.ledger.gradients.parser import Equation, parse_equation
from lemma.ledger.gradients.tree import Call, Name, Node, subtrees


@dataclass(frozen=True)
class Cell:
    """One step of a network. Its gradients are the derivatives of `loss`, the last of the equations."""

    name: str
    about: str
    sizes: dict[str, str]
    """The sizes with their meaning, such as {"n_a": "hidden units"}."""
    given: dict[str, str]
    """Inputs and parameters with their rows and columns, such as {"W_f": "n_a n_a+n_x"}."""
    equations: str
    one_hot: tuple[str, ...] = ()
    """Given vectors with a single 1, which nobody derives by."""
    incoming: tuple[str, ...] = ()
    """Gradients that arrive from elsewhere; they are given."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Other spellings of names; each holds for the gradient too."""

    @cached_property
    def forward(self) -> tuple[Equation, ...]:
        """The forward equations in order, the loss last."""
        return tuple(parse_equation(line.strip()) for line in self.equations.strip().splitlines())

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """The intermediates in the order of their computation, without the loss."""
        return tuple(equation.name for equation in self.forward[:-1])

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Every name that has a value in the forward pass or is given, sizes first."""
        return (*self.sizes, *self.given, *self.steps)

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """The gradients that can be derived."""
        fixed = {*self.one_hot, *self.incoming}
        names = [f"d{name}" for name in (*self.given, *self.steps) if name not in fixed]
        return tuple(name for name in names if name not in fixed)

    @cached_property
    def known(self) -> frozenset[str]:
        """Every name of the cell."""
        return frozenset((*self.values, *self.gradients))

    def canonical(self, name: str) -> str:
        """The cell's own spelling of a name; a name it does not know stays as it is."""
        if name in self.known:
            return name
        if name in self.aliases:
            return self.aliases[name]
        rest = self.aliases.get(name[1:]) if name.startswith("d") else None
        return f"d{rest}" if rest and f"d{rest}" in self.known else name

    def depth(self, name: str) -> int:
        """How far into the forward pass a name's value is computed; given values stand at -1."""
        value = name[1:] if name in self.gradients else name
        return self.steps.index(value) if value in self.steps else -1

    @cached_property
    def activations(self) -> "tuple[tuple[str, str, Node], ...]":
        """Every (function, input, output) of the forward pass; the output is a name if it has one."""
        return tuple(self._activations())

    def _activations(self) -> "Iterator[tuple[str, str, Node]]":
        for equation in self.forward:
            for path, node in subtrees(equation.expression):
                match node:
                    case Call("sigmoid" | "tanh" as function, (Name(pre),)):
                        yield function, pre, node if path else Name(equation.name)
