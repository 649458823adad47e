"""The spec behind a model, where there is one, and its full words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lemma.ledger.sources import Model
from lemma.ledger.spec_sources import body_of
from lemma.ledger.subject import BATCH, Subject
from lemma.runs import RunFolder
from lemma.spec import FAMILIES, Choice, ModelSpec, NewFamily, choose, find_preset

FOLLOWS = {"D": "d"}  # where a tied output makes two sizes one, the account knows it by the second name


def spec_of(model: Model, words: Mapping[str, Any] | None, subject: Subject) -> ModelSpec | None:
    """The spec that a model's subject was made from; None for a factory."""
    own = {word: value for word, value in (words or {}).items() if word != BATCH and word not in subject.running}
    if isinstance(model, (Choice, NewFamily, *FAMILIES.values())):
        return choose(model, own).model
    if isinstance(model, (str, Path)) and (Path(model) / "spec.toml").exists():
        return choose(RunFolder.open(Path(model)).spec, own).model
    if isinstance(model, (str, Path)) and (Path(model).is_file() or find_preset(str(model))):
        return choose(model, own).model
    return None


def _letters(spec: ModelSpec) -> dict[str, str]:
    """The letters of a model's fields; a classifier has those of its body too."""
    return {**type(body_of(spec)).letters(), **type(spec).letters()}


def full_names(spec: ModelSpec | None, known: Mapping[str, int]) -> dict[str, str]:
    """What may stand in the place of an account's symbols: the fields' names, `batch`, the letter of a tied size."""
    names = {"batch": BATCH} if BATCH in known else {}
    for letter, field in _letters(spec).items() if spec else ():
        symbol = letter if letter in known else FOLLOWS.get(letter, letter)
        if symbol in known:
            names |= {name: symbol for name in (field, letter) if name not in known}
    return names
