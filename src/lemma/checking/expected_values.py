"""The values that an answer may claim: numbers, words, vectors and matrices with names, and what mistakes lead to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

Array = Float[np.ndarray, "..."]
Labels = tuple[str, ...]


def normalize_word(word: str) -> str:
    """Return a word in lower case, with single blanks and without quotes, for comparison.

    >>> normalize_word(" “The  cat” ")
    'the cat'
    """
    return " ".join(word.casefold().strip("'\"“”‘’` ").split())


@dataclass(frozen=True, eq=False)
class ExpectedValue:
    """A quantity that an answer may claim, with its right value: a number, a word, a vector or a matrix."""

    name: str
    values: Any  # an array of numbers, or for each word a tuple of those that are right: several where they tie
    labels: tuple[Labels, ...]  # of each axis
    meaning: str = ""
    aliases: Labels = ()  # other names of the value
    label_aliases: Labels = ()  # other names of a vector's labels, one for each
    mistakes: Mapping[str, Any] = field(default_factory=dict)  # arrays, or words, that mistakes give, by description
    formula: str = ""  # how it is computed in general: the first hint
    work: str = ""  # the computation with the numbers of the exercise, for the solution
    scales: Mapping[float, str] = field(
        default_factory=dict
    )  # other units in which it may be given: {100: "in per cent"}
    up_to: frozenset[str] = frozenset()  # what does not matter: "sign", "scale", "order", "transposition", "decimals"
    normalize: Callable[[str], str] = normalize_word  # of words, for comparison
    unit: str = ""  # of the numbers, such as GB or ms: an answer may give it, or another of the same kind

    @property
    def is_numeric(self) -> bool:
        """True if the value is made of numbers rather than words."""
        return not isinstance(self.values, tuple)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis of the value; () for a single number or word."""
        return tuple(map(len, self.labels))

    @property
    def shape_text(self) -> str:
        """The shape in words, such as "a number", "2 numbers" or "2×3"."""
        unit = "number" if self.is_numeric else "word"
        sizes = "×".join(map(str, self.shape)) or f"a {unit}"
        return f"{sizes} {unit}s" if len(self.shape) == 1 else sizes


def number_labels(count: int, prefix: str = "") -> Labels:
    """Return the numbers 1 to `count` as labels, each after the prefix.

    >>> number_labels(2, "x_")
    ('x_1', 'x_2')
    """
    return tuple(f"{prefix}{number}" for number in range(1, count + 1))


def expect_numbers(
    names: str | Sequence[str],
    values: Array | float,
    labels: Iterable[Iterable[str]] = (),
    meaning: str = "",
    mistakes: Mapping[str, Array | float] | None = None,
    **details: Any,
) -> ExpectedValue:
    """Return a quantity whose right value is a number or an array of numbers.

    Args:
        names: the name and its aliases; as a string, separated by blanks.
        labels: labels of the first axes; the entries of the others are numbered from 1.
        meaning: short description or formula.
        mistakes: arrays that known mistakes lead to, by description; arrays of another shape are left out.
        details: further fields of `ExpectedValue`, such as `formula` and `work`.

    >>> expect_numbers("accuracy acc", 0.75, scales={100: "in per cent"}).aliases
    ('acc',)
    """
    name, *aliases = names.split() if isinstance(names, str) else names
    array, axes = np.asarray(values, dtype=np.float64), tuple(map(tuple, labels))
    axes += tuple(map(number_labels, array.shape[len(axes) :]))
    wrong_arrays = {text: np.asarray(wrong, dtype=np.float64) for text, wrong in (mistakes or {}).items()}
    same_shape = {text: wrong for text, wrong in wrong_arrays.items() if wrong.shape == array.shape}
    return ExpectedValue(name, array, axes, meaning, tuple(aliases), mistakes=same_shape, **details)


def expect_words(
    names: str | Sequence[str],
    words: str | Sequence[str | Sequence[str]],
    labels: Sequence[str] = (),
    meaning: str = "",
    mistakes: Mapping[str, str | Sequence[str]] | None = None,
    **details: Any,
) -> ExpectedValue:
    """Return a quantity whose right value is a word, or a list of words.

    Args:
        names: the name and its aliases; as a string, separated by blanks.
        words: a word, or a list of words; an item may be a tuple of words that are all right.
        labels: labels of a list's entries; by default they are numbered from 1.
        meaning: short description.
        mistakes: words that known mistakes lead to, by description.
        details: further fields of `ExpectedValue`.

    >>> expect_words("path", ["H", ("C", "H")]).values
    (('H',), ('C', 'H'))
    """
    name, *aliases = names.split() if isinstance(names, str) else names
    wrong = {text: (value,) if isinstance(value, str) else tuple(value) for text, value in (mistakes or {}).items()}
    if isinstance(words, str):
        return ExpectedValue(name, ((words,),), (), meaning, tuple(aliases), mistakes=wrong, **details)
    values = tuple((word,) if isinstance(word, str) else tuple(word) for word in words)
    axes = (tuple(labels) or number_labels(len(values)),)
    return ExpectedValue(name, values, axes, meaning, tuple(aliases), mistakes=wrong, **details)
