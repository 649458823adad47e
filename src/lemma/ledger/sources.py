"""Subjects from what a person names: a preset, a spec file, a run folder, an example, or any factory of modules."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lemma.errors import InputError, LedgerError, SpecError, unknown
from lemma.ledger.examples import EXAMPLES
from lemma.ledger.fitting import fit
from lemma.ledger.ladders import DIVISORS
from lemma.ledger.polynomial import Polynomial
from lemma.ledger.subject import BATCH, Inputs, Subject, Values
from lemma.models import build
from lemma.runs import RunFolder
from lemma.spec import PRESETS, Choice, ModelSpec, Rotary, choose, distribute

TIME = "T"
STRETCH = 64  # tokens a row of a model without a context of its own
WINDOWS = {"N": [3, 4, 5, 6, 7, 8], TIME: [12, 13, 14, 15, 16, 18]}
"""Sizes of window models: with one word before it a window needs no mask, and none may be longer than the text."""

Model = str | Path | ModelSpec | Choice | Callable[..., nn.Module]


def subject_of(model: Model, words: Mapping[str, Any] | None = None) -> Subject:
    """Find what a person means: a preset, spec, spec file, run folder, example, or `package.module:factory`."""
    words = dict(words or {})
    if callable(model) and not isinstance(model, Choice):
        return factory_subject(model, words)
    if isinstance(model, str) and ":" in model:
        return factory_subject(_imported(model), words, model)
    if isinstance(model, str) and model in EXAMPLES:
        return factory_subject(EXAMPLES[model], words, model)
    if isinstance(model, (str, Path)) and (Path(model) / "spec.toml").exists():
        return spec_subject(RunFolder.open(Path(model)).spec, words, str(model))
    if isinstance(model, str) and model not in PRESETS and not Path(model).exists():
        raise SpecError(
            unknown("model", model, [*PRESETS, *EXAMPLES])
            + " A spec file, a run folder or package.module:factory will do too."
        )
    return spec_subject(model, words)


def spec_subject(model: str | Path | ModelSpec | Choice, words: dict[str, Any], name: str | None = None) -> Subject:
    """The family of models that differ from one spec in its sizes only."""
    batch = words.pop(BATCH, 1)
    base = choose(model).model
    time = {} if TIME in type(base).letters() else {TIME: words.pop(TIME, STRETCH)}
    spec = base.replace(**distribute(words, {"model": type(base)})["model"])
    sizes = spec.sizes()
    follows = {"D": "d"} if getattr(spec, "tied", False) and "D" in sizes else {}  # one size by two names
    symbols = {letter: value for letter, value in sizes.items() if letter not in follows}

    def at(values: Values) -> ModelSpec:
        mine = {letter: value for letter, value in values.items() if letter in sizes}
        return spec.replace(**mine, **{letter: values[other] for letter, other in follows.items()})

    kept = {word: value for word, value in spec.to_dict().items() if word not in type(spec).letters().values()}
    return Subject(
        name or (str(model) if isinstance(model, (str, Path)) else spec.family),
        symbols,
        make=lambda values: build(at(values)),
        feed=_tokens,
        running={BATCH: _positive(BATCH, batch), **{name: _positive(name, size) for name, size in time.items()}},
        defaults=_defaults(spec),
        ladders=WINDOWS if "N" in sizes else _head_ladders(spec),
        identity=f"spec {kept} {sorted(symbols)}",
    )


def factory_subject(factory: Any, words: Mapping[str, Any], name: str | None = None) -> Subject:
    """Any callable that takes whole numbers by name and returns a module.

    Arguments that are whole numbers are symbols; others are passed on. What it is called with is made by its
    attribute `inputs`, a function of the same numbers, of which it may have more (such as B and T).
    """
    called: str = name or getattr(factory, "__name__", type(factory).__name__)
    known = _parameters(factory, words)
    feed = getattr(factory, "inputs", None)
    fed = inspect.signature(feed).parameters if feed else {}
    _refuse_unknown(words, {*known, *fed}, called)
    asked = {**_defaults_of(fed), **_defaults_of(known), **words}
    numbers = {word: value for word, value in asked.items() if isinstance(value, int) and not isinstance(value, bool)}
    others = {word: value for word, value in asked.items() if word not in numbers and word in known}
    missing = [word for word, p in known.items() if word not in asked and p.default is p.empty]
    if missing:
        raise InputError(f"{called} needs a value for {', '.join(missing)}, as in {missing[0]}=4.")
    return Subject(
        called,
        {word: numbers[word] for word in known if word in numbers},
        make=lambda values: factory(**others, **{word: values[word] for word in known if word in numbers}),
        feed=(lambda values: _as_inputs(feed(**{word: values[word] for word in fed}))) if feed else None,
        running={word: numbers[word] for word in fed if word not in known},
        ladders=getattr(factory, "ladders", {}),
        identity=_identity(factory, others),
    )


def _positive(name: str, size: Any) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InputError(f"{name} = {size!r}: a whole number from 1 up is expected, as in {name}=8.")
    return size


def _tokens(values: Values) -> Inputs:
    return Inputs((torch.zeros(values[BATCH], values[TIME], dtype=torch.long),))


def _defaults(spec: ModelSpec) -> dict[str, Polynomial]:
    """What the unset sizes of a spec are in terms of the others, read off the spec itself."""
    letters = type(spec).letters()
    unset = [letter for letter, name in letters.items() if getattr(spec, name) is None and letter in spec.sizes()]
    if not unset:
        return {}
    ladders = {letter: [12, 24, 36, 48, 60] for letter in letters if letter not in unset and letter == "d"}
    one_head = {letter: 1 for letter in ("h", "h_kv") if letter in spec.sizes()}

    def sample(values: Values) -> dict[str, int]:
        sizes = spec.replace(**{**values, **one_head}).sizes()
        return {letter: sizes[letter] for letter in unset}

    return fit(sample, ladders)


def _head_ladders(spec: ModelSpec) -> dict[str, list[int]]:
    """Where to probe a Transformer whose sizes have much to divide: heads in groups, or the pairs that rotary turns."""
    grouped, turned = getattr(spec, "key_value_heads", None), isinstance(getattr(spec, "positions", None), Rotary)
    if not (grouped or turned):
        return {}
    heads, most = ([12, 24, 36, 48, 72], 144) if grouped else (DIVISORS, 12)
    widths = [most * (2 if turned else 1) * rung for rung in range(1, 9)]
    return {"h": heads, "h_kv": DIVISORS, "d_h": widths, "d_v": widths}


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        with _working_folder():
            found: Any = import_module(module)
        for step in attribute.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"{name}: cannot be imported ({error}). Expected package.module:factory.") from None
    return found


@contextmanager
def _working_folder() -> Iterator[None]:
    """Let modules be found where the person is."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))


def _refuse_unknown(words: Mapping[str, Any], known: set[str], name: str) -> None:
    wrong = next((word for word in words if word not in known), None)
    if wrong is not None:
        raise SpecError(unknown(f"{name}: the word", wrong, sorted(known)))


def _parameters(factory: Any, words: Mapping[str, Any]) -> dict[str, inspect.Parameter]:
    """What a factory takes by name; one that takes anything takes the words given."""
    found = inspect.signature(factory).parameters
    named = {name: p for name, p in found.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in found.values()):
        named |= {word: inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY) for word in words if word not in named}
    return named


def _defaults_of(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    return {name: p.default for name, p in parameters.items() if p.default is not p.empty}


def _as_inputs(made: Any) -> Inputs:
    if isinstance(made, Inputs):
        return made
    if isinstance(made, dict):
        return Inputs((), made)
    return Inputs(made if isinstance(made, tuple) else (made,))


def _identity(factory: Any, others: Mapping[str, Any]) -> str | None:
    """The factory's module and source, and the version of its package; None if these do not tell all about it."""
    plain = inspect.isclass(factory) or (inspect.isfunction(factory) and not factory.__closure__)
    if not plain or factory.__name__ == "<lambda>":
        return None
    try:
        source = inspect.getsource(inspect.getmodule(factory) or factory)
    except (OSError, TypeError, LedgerError):
        return None
    package = (factory.__module__ or "").partition(".")[0]
    version = getattr(import_module(package), "__version__", "") if package not in ("", "__main__") else ""
    return f"factory {factory.__module__}:{factory.__qualname__} {version} {sorted(others.items())} {source}"
