"""Subjects of adapted models: the family of what a method makes of a spec's models, or of what learns in them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import nn

from lemma import adaptation
from lemma.adaptation import adapt_model
from lemma.ledger.spec_sources import spec_subject
from lemma.ledger.subject import Subject, Values
from lemma.runs import RunFolder
from lemma.runs.based import always_learned
from lemma.spec import Method, ModelSpec

DEPTHS = [2, 3, 4, 5]  # layers are counted, never multiplied with each other: few are enough


def run_subject(folder: RunFolder, words: dict[str, Any]) -> Subject:
    """The family of a run's models: of an adapted run with what its method adds, frozen parts and all."""
    if folder.adaptation is None:
        return spec_subject(folder.spec, words, str(folder.path))
    method = folder.adaptation.method
    known = type(method).known_words()
    method = method.replace(**{word: words.pop(word) for word in list(words) if word in known})
    plain = spec_subject(folder.spec, words, str(folder.path))
    return _adapted(plain, method, always_learned(folder.spec, method), whole=True)


def adapted_subject(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> Subject:
    """The family of what learns in a spec's models: its sizes are the spec's and the method's."""
    return _adapted(spec_subject(spec, {}), method, learn, whole=False)


def _adapted(plain: Subject, method: Method, learn: Sequence[str], whole: bool) -> Subject:
    sizes = {letter: int(getattr(method, name)) for letter, name in type(method).letters().items()}

    def make(values: Values) -> nn.Module:
        at = method.replace(**{letter: values[letter] for letter in sizes})
        adapted = adapt_model(plain.make(values), at, learn, any_rank=True).model
        return adapted if whole else only_learned(adapted)

    return replace(
        plain,
        name=f"{plain.name}, {method.kind}",
        symbols={**plain.symbols, **sizes},
        make=make,
        feed=plain.feed if whole else None,
        ladders={**plain.ladders, **{letter: DEPTHS for letter in plain.symbols if letter in ("L", "L_enc", "L_dec")}},
        identity=_identity(plain, method, learn, sizes, whole),
    )


def only_learned(model: nn.Module) -> nn.Module:
    """What learns of a module, as a module that holds nothing else and is not run."""
    whole = nn.Module()
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            *parents, name = path.split(".")
            reduce(_child, parents, whole).register_parameter(name, parameter)
    return whole


def _child(parent: nn.Module, name: str) -> nn.Module:
    if name not in parent._modules:
        parent.add_module(name, nn.Module())
    return parent.get_submodule(name)


def _identity(
    plain: Subject, method: Method, learn: Sequence[str], sizes: Mapping[str, int], whole: bool
) -> str | None:
    if plain.identity is None:
        return None
    letters = type(method).letters()
    words = {word: value for word, value in method.to_dict().items() if word not in {letters[size] for size in sizes}}
    sources = sorted(Path(adaptation.__file__).parent.glob("*.py"))
    code = sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{plain.identity} learns {words} {list(learn)} {'and all' if whole else 'alone'} {code}"
