"""The account of a model: every quantity as a formula, part by part, with the numbers at the sizes asked for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from lemma.data.atomic import write_atomically
from lemma.errors import InputError, unknown
from lemma.ledger import tree
from lemma.ledger.polynomial import Polynomial
from lemma.ledger.quantity import Figure, Quantity, Values
from lemma.ledger.writing import write


@dataclass(frozen=True)
class Account:
    """What a module costs: parameters, flops, backward, activations, cache and optimizer, as far as counted."""

    model: str
    symbols: Values
    quantities: Mapping[str, Quantity]
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)

    @property
    def order(self) -> tuple[str, ...]:
        """The symbols in the order in which formulas are written."""
        return tuple(self.symbols)

    def __getattr__(self, name: str) -> Figure:
        """A quantity by its name: `account.parameters.formula`."""
        quantities = self.__dict__.get("quantities", {})
        if name in quantities:
            return Figure(quantities[name], self.symbols)
        raise AttributeError(f"this account has no {name!r}; it has {', '.join(quantities)}")

    def __str__(self) -> str:
        return tree.terminal(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        figures = {name: Figure(quantity, self.symbols).to_dict() for name, quantity in self.quantities.items()}
        if "backward" in figures and "flops" in figures:
            figures["flops"]["backward"] = figures.pop("backward")
        defaults = {name: write(default, self.order) for name, default in self.defaults.items()}
        about = {"model": self.model, "symbols": dict(self.symbols), "defaults": defaults}
        return {**about, **figures, "parts": figures.get("parameters", {}).get("parts", [])}

    def _repr_html_(self) -> str:
        return tree.html(self)

    def save(self, path: Path | str) -> None:
        """Write it as .html, .md, .tex, .json or .txt, as the name says."""
        forms = {
            ".html": lambda: (
                f"<!doctype html><meta charset='utf-8'><title>{escape(self.model)}</title>{self._repr_html_()}"
            ),
            ".md": self.markdown,
            ".tex": self.latex,
            ".json": lambda: json.dumps(self.to_dict(), indent=2),
            ".txt": self.__str__,
        }
        suffix = Path(path).suffix
        if suffix not in forms:
            raise InputError(f"{path}: " + unknown("the form", suffix, forms))
        write_atomically(Path(path), forms[suffix]())

    def markdown(self) -> str:
        """The account as Markdown tables."""
        return tree.markdown(self)

    def latex(self) -> str:
        """The formulas as LaTeX."""
        return tree.latex(self)
