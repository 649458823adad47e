"""Subjects from specs: the family of models that differ from one spec in its sizes only."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lemma.errors import InputError
from lemma.ledger.fitting import fit
from lemma.ledger.ladders import DIVISORS
from lemma.ledger.polynomial import Polynomial
from lemma.ledger.subject import BATCH, Inputs, Subject, Values
from lemma.models import CrossAttentionModel, EncoderModel, TreeModel, build
from lemma.spec import (
    CHANNELS,
    Choice,
    CrossAttention,
    DualEncoder,
    EncoderDecoder,
    Graph,
    ModelSpec,
    NewFamily,
    Reading,
    Reranking,
    Transformer,
    Tree,
    brought_sources,
    choose,
    distribute,
)

TIME, SOURCE, NODES = "T", "S", "n"
STRETCH = 64  # tokens a row of a model without a context of its own
WINDOWS = {"N": [3, 4, 5, 6, 7, 8], TIME: [12, 13, 14, 15, 16, 18]}
"""Sizes of window models: with one word before it a window needs no mask, and none may be longer than the text."""
MARKED = {
    "V": list(range(5, 13)),
    "h": DIVISORS,
    "d_h": list(range(12, 108, 12)),
    TIME: list(range(9, 17)),
    SOURCE: list(range(2, 9)),
    **{depth: [2, 3, 4, 5] for depth in ("L", "L_enc", "L_dec")},  # layers take time
}
"""Sizes of Transformers with marks among their tokens; no source may be longer than the context."""
PICTURES = {
    "G": [2, 3, 4, 5, 6, 7],  # attention among patches grows with the fourth power
    "P": [2, 3, 4, 5],
    "d_i": [12 * rung for rung in range(1, 7)],
    "L_i": [2, 3, 4, 5],
    "h_i": DIVISORS,
}
"""Sizes of an image tower."""


def spec_subject(model: str | Path | ModelSpec | Choice, words: dict[str, Any], name: str | None = None) -> Subject:
    """The family of models that differ from one spec in its sizes only."""
    base = choose(model).model
    running = {BATCH: words.pop(BATCH, 1)} | _taken(words, base)
    spec = with_words(base, words)
    _refuse_longer(spec, running)
    sizes, body = spec.sizes(), body_of(spec)
    follows = {"D": "d"} if getattr(body, "tied", False) and "D" in sizes else {}  # one size by two names
    symbols = {letter: value for letter, value in sizes.items() if letter not in follows}

    def at(values: Values) -> ModelSpec:
        mine = {letter: value for letter, value in values.items() if letter in sizes}
        return spec.at({**mine, **{letter: values[other] for letter, other in follows.items()}})

    return Subject(
        name or (str(model) if isinstance(model, (str, Path)) else spec.family),
        symbols,
        make=lambda values: whole_pass(build(at(values))),
        feed=_feed(spec),
        running={name: _positive(name, size) for name, size in running.items()},
        defaults=_defaults(spec),
        ladders=ladders_of(spec),
        identity=_identity(spec, symbols),
    )


def _identity(spec: ModelSpec, symbols: Mapping[str, int]) -> str | None:
    """What tells this family from all others, with the sources of what other packages bring; None if there are none."""
    sources = brought_sources(spec)
    return None if sources is None else f"spec {_without_sizes(spec)} {sorted(symbols)}{sources}"


def _taken(words: dict[str, Any], base: ModelSpec) -> dict[str, Any]:
    """The lengths that a model is called with beside its own sizes, taken from among the words.

    A source is as long as the target, whose length is the context, if nothing is said of it.
    """
    if isinstance(base, Graph):
        return {NODES: words.pop(NODES, STRETCH)}
    if isinstance(base, EncoderDecoder):
        return {SOURCE: words.pop(SOURCE, words.get(TIME, words.get("context", base.context)))}
    return {} if TIME in base.sizes() else {TIME: words.pop(TIME, STRETCH)}


def _refuse_longer(spec: ModelSpec, running: Mapping[str, Any]) -> None:
    if isinstance(spec, EncoderDecoder) and _positive(SOURCE, running[SOURCE]) > spec.context:
        raise InputError(f"S = {running[SOURCE]}: no source is longer than the context, T = {spec.context}.")


def with_words(spec: ModelSpec, words: Mapping[str, Any]) -> ModelSpec:
    """Let words change a model; those of its body reach its body, those of its towers its towers."""
    if isinstance(spec, CrossAttention):
        own = {word: value for word, value in words.items() if word in Reranking.known_words()}
        others = {word: value for word, value in words.items() if word not in own}
        return spec.replace(**own, towers=with_words(spec.towers, others).to_dict())
    if not isinstance(spec, Reading):
        return spec.replace(**distribute(words, {"model": type(spec)})["model"])
    shares = distribute(words, {"model": type(spec), "body": type(spec.body)})
    return spec.replace(**{"body": spec.body.replace(**shares["body"]).to_dict(), **shares["model"]})


def body_of(spec: ModelSpec) -> ModelSpec:
    """The model itself; of one that reads by a body, its body."""
    spec = towers_of(spec)
    return spec.body if isinstance(spec, Reading) else spec


def towers_of(spec: ModelSpec) -> ModelSpec:
    """The model itself; of a re-ranker its dual encoder, whose sizes it has."""
    return spec.towers if isinstance(spec, CrossAttention) else spec


def _without_sizes(spec: ModelSpec) -> dict[str, Any]:
    """The words of a spec that are no sizes."""
    if isinstance(spec, CrossAttention):
        return {"family": spec.family, "towers": _without_sizes(spec.towers)}
    kept = {word: value for word, value in spec.to_dict().items() if word not in type(spec).letters().values()}
    return kept | {"body": _without_sizes(spec.body)} if isinstance(spec, Reading) else kept


def whole_pass(model: nn.Module) -> nn.Module:
    """Let a call of a model go through all of it: an encoder may have two outputs, or none for tokens."""
    if isinstance(model, EncoderModel) and model.follow is not None:
        model.forward = partial(_all_outputs, model)
    if isinstance(model, TreeModel):
        model.forward = model.vectors  # a body alone: nothing comes after its vectors
    if isinstance(model, CrossAttentionModel):
        model.forward = partial(_looked, model)  # pyright: ignore[reportAttributeAccessIssue]
    return model


def _looked(model: CrossAttentionModel, images: Tensor, tokens: Tensor) -> Tensor:
    """The logit of each image with the text of its row, from pixels and tokens."""
    patches, words, there = model.towers.patches(images), model.towers.words(tokens), tokens >= 0
    added = type(model).forward(model, patches, words, there)
    return model.dual_logits(patches, words, there) + added


def _all_outputs(model: EncoderModel, tokens: Tensor) -> Tensor:
    """All logits of an encoder in one tensor, so that what is counted backward starts from all of them."""
    vectors = model.vectors(tokens)
    follows = model.follow(vectors[:, 0]) if model.follow is not None else vectors[:, :0, 0]
    return follows if model.output is None else torch.cat([model.output(vectors).flatten(1), follows], dim=1)


def _positive(name: str, size: Any) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InputError(f"{name} = {size!r}: a whole number from 1 up is expected, as in {name}=8.")
    return size


def _feed(spec: ModelSpec) -> Callable[[Values], Inputs]:
    match spec:
        case EncoderDecoder():
            return _pairs
        case DualEncoder() | CrossAttention():
            return _images
        case Graph():
            return _graph
        case _:
            return _trees if isinstance(body_of(spec), Tree) else _tokens


def _images(values: Values) -> Inputs:
    side = values["G"] * values["P"]
    return Inputs((torch.zeros(values[BATCH], CHANNELS, side, side), *_tokens(values).positional))


def _graph(values: Values) -> Inputs:
    """Features of n nodes, and all n² entries of Â: how many of them are edges is the graph's, not the model's."""
    return Inputs((torch.zeros(values[NODES], values["F"]), torch.zeros(values[NODES], values[NODES])))


def _tokens(values: Values) -> Inputs:
    return Inputs((torch.zeros(values[BATCH], values[TIME], dtype=torch.long),))


def _trees(values: Values) -> Inputs:
    """Words that all hang on the first: what is counted is the same for every tree."""
    return Inputs((torch.zeros(values[BATCH], values[TIME], 2, dtype=torch.long),))


def _pairs(values: Values) -> Inputs:
    lengths = (values[SOURCE], values[TIME])
    return Inputs(tuple(torch.zeros(values[BATCH], length, dtype=torch.long) for length in lengths))


def _defaults(spec: ModelSpec) -> dict[str, Polynomial]:
    """What the unset sizes of a spec are in terms of the others, read off the spec itself."""
    spec = body_of(spec)
    letters = type(spec).letters()
    unset = [letter for letter, name in letters.items() if getattr(spec, name) is None and letter in spec.sizes()]
    if not unset:
        return {}
    ladders = {letter: [12, 24, 36, 48, 60] for letter in letters if letter not in unset and letter == "d"}
    one_head = {letter: 1 for letter in ("h", "h_kv") if letter in spec.sizes()}

    def sample(values: Values) -> dict[str, int]:
        sizes = spec.at({**values, **one_head}).sizes()
        return {letter: sizes[letter] for letter in unset}

    return fit(sample, ladders)


def ladders_of(spec: ModelSpec) -> dict[str, list[int]]:
    """Where to probe a family whose sizes cannot be just any."""
    body = body_of(spec)
    if isinstance(body, Graph):
        return {"L": [3, 4, 5, 6]}  # a first layer, a last one, and those between
    if isinstance(body, NewFamily) and body.ladders:
        return {letter: list(sizes) for letter, sizes in body.ladders.items()}
    pictures = PICTURES if isinstance(towers_of(spec), DualEncoder) else {}
    if "N" in body.sizes():
        return {**WINDOWS, **pictures}
    return {**(MARKED if isinstance(body, Transformer) else {}), **_head_ladders(body), **pictures}


def _head_ladders(spec: ModelSpec) -> dict[str, list[int]]:
    """Where to probe a Transformer whose sizes have much to divide: heads in groups, or the pairs that rotary turns."""
    grouped, turned = getattr(spec, "key_value_heads", None), getattr(getattr(spec, "positions", None), "paired", False)
    if not (grouped or turned):
        return {}
    heads, most = ([12, 24, 36, 48, 72], 144) if grouped else (DIVISORS, 12)
    widths = [most * (2 if turned else 1) * rung for rung in range(1, 9)]
    return {"h": heads, "h_kv": DIVISORS, "d_h": widths, "d_v": widths}
