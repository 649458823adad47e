"""Subjects from what a person names: a preset, a spec file, a run folder, an example, or any factory of modules.

Importing a module runs its code, so only a person may name one. `imported` does so for what was typed on the command
line or passed to the Python API. `subject_of` never imports: it may be called with text read from a file.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from lemma.errors import InputError, LedgerError, SpecError, unknown
from lemma.ledger.adapted import run_subject
from lemma.ledger.examples import EXAMPLES
from lemma.ledger.spec_sources import spec_subject
from lemma.ledger.subject import Inputs, Subject
from lemma.runs import RunFolder
from lemma.spec import PRESETS, Choice, ModelSpec, preset_names


@dataclass(frozen=True)
class Factory:
    """A factory of modules that was imported by the name `package.module:factory`."""

    name: str
    make: Callable[..., nn.Module]


Model = str | Path | ModelSpec | Choice | Factory | Callable[..., nn.Module]


def imported(model: Any) -> Any:
    """Import a model given as `package.module:factory`; return any other model as it is.

    Call this only with what a person typed on the command line or passed in Python, never with text from a file.
    """
    return Factory(model, _imported(model)) if isinstance(model, str) and ":" in model else model


def subject_of(model: Model, words: Mapping[str, Any] | None = None) -> Subject:
    """Find what a model's name means: a preset, spec file, run folder or example. A spec or a factory will do too.

    The name may come from a file: `package.module:factory` is refused here, and is imported by `imported` only.
    """
    words = dict(words or {})
    if callable(model) and not isinstance(model, Choice):
        return factory_subject(model, words)
    if isinstance(model, Factory):
        return factory_subject(model.make, words, model.name)
    if isinstance(model, str) and ":" in model:
        raise SpecError(
            f"model = '{model}' names Python code to import, which a file must not do: it could run any command. "
            f"Expected a preset, a spec file, a run folder or an example ({', '.join([*preset_names(), *EXAMPLES])}). "
            "If you trust that module, name it yourself: "
            "lemma count package.module:factory, or lemma check parameters package.module:factory FORMULA."
        )
    if isinstance(model, str) and model in EXAMPLES:
        return factory_subject(EXAMPLES[model], words, model)
    if isinstance(model, (str, Path)) and (Path(model) / "spec.toml").exists():
        return run_subject(RunFolder.open(Path(model)), words)
    if isinstance(model, str) and model not in PRESETS and not Path(model).exists() and model not in preset_names():
        raise SpecError(
            unknown("model", model, [*preset_names(), *EXAMPLES])
            + " A spec file, a run folder or package.module:factory will do too."
        )
    return spec_subject(model, words)


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
