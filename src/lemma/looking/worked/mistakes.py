"""What does not fit in a case, said in the words of the file that it was written in."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from lemma.errors import unknown
from lemma.looking.worked.numerals import shortened

TABLES = ("vectors", "queries", "source")
MATRICES = ("W_Q", "W_K", "W_V", "W_u", "W_f", "W_o", "W_c", "W_y", "W_i", "W_t", "I", "T", "X", "W")
GATES = ("gamma_u", "gamma_f", "gamma_o", "candidate")
STATES = ("c_prev", "a_prev", "h_prev", "x", "da_next", "dh_next", "dc_next", "b_u", "b_f", "b_o", "b_c", "b_y")
NAMED = ("sentences", "focus", "nodes", "edges", "image_names", "sentence_names")
FORMS = {
    **{name: ("a matrix", f"{name} = [[1, 0], [0, 1]]") for name in MATRICES},
    **{name: ("a vector", f"{name} = [0.5, 0.9]") for name in (*GATES, *STATES)},
    "y": ("a one-hot vector", "y = [0, 1, 0]"),
    **{name: ("named vectors", f"{name} = {{cat = [1, 0], dog = [0, 1]}}") for name in TABLES},
    "sentences": ("one sentence or several", 'sentences = ["the cat sat"]'),
    "other_words": ("a vector", "other_words = [0, 0]"),
    "focus": ("a word or several", 'focus = ["cat"]'),
    "nodes": ("names", 'nodes = ["a", "b"]'),
    "edges": ("pairs of nodes", 'edges = [["a", "b"], ["b", "c"]]'),
    **{name: ("names", f'{name} = ["a cat", "a dog"]') for name in ("image_names", "sentence_names")},
}
"""What is expected under a word, and how it is written."""


def misplaced(words: Mapping[str, Any], where: str, known: Sequence[str]) -> str:
    """Name the words that stand below a table's heading, where TOML takes them for the table's own; or nothing."""
    tables = {name: words[name] for name in TABLES if isinstance(words.get(name), Mapping)}
    lines = [
        f"{where}: {word} stands inside [{name}]; move it above the tables."
        for name, table in tables.items()
        for word, value in table.items()
        if word in known and word not in words and (word in (*MATRICES, "other_words") or not _is_vector(value))
    ]
    return "\n".join(lines)


def mistakes(error: ValidationError, words: Mapping[str, Any], where: str, known: list[str]) -> str:
    """Turn pydantic's report into one line a mistake, each said once."""
    return "\n".join(dict.fromkeys(_said(error, words, where, known)))


def _said(error: ValidationError, words: Mapping[str, Any], where: str, known: list[str]) -> Iterator[str]:
    for mistake in error.errors():
        word, *path = mistake["loc"] or ("",)
        if mistake["type"] == "too_short" and mistake["input"]:
            continue  # entries that do not fit are not counted; each has been named already
        if mistake["type"] == "extra_forbidden":
            yield unknown(f"{where}: the word", str(word), known)
        else:
            yield f"{where}: " + _one(mistake, str(word), path, words.get(str(word)))


def _one(mistake: Any, word: str, path: list[Any], value: Any) -> str:
    kind, place = mistake["type"], _place(word, path)
    if kind == "missing":
        return f"{word} is missing.{_wanted(word)}"
    if kind == "too_short":
        return f"{place} is empty.{_wanted(word)}"
    if kind == "too_long":
        limit, there = mistake["ctx"]["max_length"], len(mistake["input"])
        return f"{place} is too long for work by hand: {there:,}, at most {limit}."
    if word in FORMS and kind in ("tuple_type", "dict_type"):
        what = "no matrix" if word in MATRICES else f"not {FORMS[word][0]}"
        return f"{word} = {_written(value)} is {what}.{_wanted(word)}"
    if kind in ("float_type", "finite_number"):
        return f"{place} = {_written(mistake['input'])}: give a finite number."
    return f"{place} = {_written(mistake['input'])}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}."


def _wanted(word: str) -> str:
    return f" Give {FORMS[word][0]}, as in {FORMS[word][1]}." if word in FORMS else ""


def _place(word: str, path: list[Any]) -> str:
    """Where in the file: rows and numbers are counted from 1, as a person counts them."""
    names = [word, *(step for step in path if isinstance(step, str))]
    steps = [step + 1 for step in path if isinstance(step, int)]
    kinds = ("row", "number") if word in MATRICES else ("number",) if word not in NAMED else ("entry",)
    counts = [f"{kind} {step}" for kind, step in zip(kinds, steps, strict=False)]
    return ": ".join([".".join(names), *([", ".join(counts)] if counts else [])])


def _written(value: Any) -> str:
    """A value as it stands in a file, cut where it is long."""
    return shortened(repr(value), 40)


def _is_vector(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(x, int | float) for x in value)
