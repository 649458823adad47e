"""How many numbers learn when a model is adapted, as a formula of its sizes and of the rank r or the bottleneck m.

It is read off the adapted module like any other: the module is built and adapted at small sizes, what does not learn
is taken out of it, and the ledger accounts for what is left.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from hashlib import sha256
from pathlib import Path

import torch
from torch import nn

from lemma import adaptation
from lemma.adaptation import adapt_model
from lemma.ledger.counting import count
from lemma.ledger.quantity import Figure
from lemma.ledger.sources import spec_subject
from lemma.ledger.subject import Subject, Values
from lemma.models import build
from lemma.spec import Method, ModelSpec

LAYER = re.compile(r"(\w+_l\d+\w*)\.(\w+)$")  # a recurrent layer's number counts layers where a path ends with it

DEPTHS = [2, 3, 4, 5]  # layers are counted, never multiplied with each other: few are enough


def trainable_formula(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> Figure:
    """The parameters that learn: their formula in the sizes of the spec and of the method, and their number.

    >>> from lemma.spec import Decoder, Lora
    >>> figure = trainable_formula(Decoder(width=64, depth=2), Lora(rank=4, targets=("*.attention.output",)))
    >>> figure.formula, figure.total
    ('L*r*(d + d_h)', 1024)
    """
    with torch.device("meta"):
        adapt_model(build(spec), method, learn)  # at the very sizes asked for: refuses what cannot be
    return count(adapted_subject(spec, method, learn), ["parameters"]).parameters


def trainable_text(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> str:
    """The same formula as `lemma count` writes it: 2·L·r·(2·d + 2·d_h + d_ff)."""
    account = count(adapted_subject(spec, method, learn), ["parameters"])
    return account.quantities["parameters"].formula(account.order, "unicode")


def adapted_subject(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> Subject:
    """The family of what learns in a spec's models: its sizes are the spec's and the method's."""
    plain = spec_subject(spec, {})
    sizes = {letter: int(getattr(method, name)) for letter, name in type(method).letters().items()}

    def make(values: Values) -> nn.Module:
        at = method.replace(**{letter: values[letter] for letter in sizes})
        return only_learned(adapt_model(plain.make(values), at, learn, any_rank=True).model)

    return replace(
        plain,
        name=f"{plain.name}, {method.kind}",
        symbols={**plain.symbols, **sizes},
        make=make,
        feed=None,
        ladders={**plain.ladders, **{letter: DEPTHS for letter in plain.symbols if letter in ("L", "L_enc", "L_dec")}},
        identity=_identity(plain, method, learn, sizes),
    )


def only_learned(model: nn.Module) -> nn.Module:
    """What learns of a module, as a module that holds nothing else and is not run."""
    whole = nn.Module()
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            *parents, name = LAYER.sub(r"\2.\1", path).split(".")
            reduce(_child, parents, whole).register_parameter(name, parameter)
    return whole


def _child(parent: nn.Module, name: str) -> nn.Module:
    if name not in parent._modules:
        parent.add_module(name, nn.Module())
    return parent.get_submodule(name)


def _identity(plain: Subject, method: Method, learn: Sequence[str], sizes: Mapping[str, int]) -> str | None:
    if plain.identity is None:
        return None
    letters = type(method).letters()
    words = {word: value for word, value in method.to_dict().items() if word not in {letters[size] for size in sizes}}
    sources = sorted(Path(adaptation.__file__).parent.glob("*.py"))
    code = sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{plain.identity} learns {words} {list(learn)} {code}"
