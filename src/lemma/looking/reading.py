"""From a model and a text to its heads: run it once with a tap on, and work the weights out again."""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lemma.errors import DataError, InputError
from lemma.looking.heads import Heads
from lemma.looking.record import heads_of
from lemma.looking.words import numbered
from lemma.models import evaluating
from lemma.parts import AttentionRecord, tap
from lemma.runs import Run

MOST_TOKENS = 512  # of a text are read: each head keeps a matrix of their square


def look_at_run(run: Run, text: str, *, layer: int | None = None, head: int | None = None) -> Heads:
    """Look at the heads of a run on a text: its first tokens, as many as the model sees at once."""
    ids = run.tokenizer.encode(text)
    if not len(ids):
        raise DataError("the text has no tokens: there is nothing to look at. Give some, as in --text 'to be or not'.")
    most = min(run.model.reach or MOST_TOKENS, MOST_TOKENS)
    notes = [f"The text has {len(ids):,} tokens; the first {most} were read."] if len(ids) > most else []
    tokens = torch.from_numpy(np.asarray(ids[:most], dtype=np.int64))
    words = [run.tokenizer.decode([token]) for token in tokens.tolist()]
    try:
        return look_at(run.model, tokens, words, name=run.path.name, layer=layer, head=head, notes=notes)
    except NoAttention:
        family = getattr(run.spec, "family", "model")
        raise InputError(
            f"{run.path}: a run of the family {family}, which has no attention heads to look at. "
            "Train one that has: lemma train decoder --text shakespeare --out runs/decoder"
        ) from None


def look_at(
    model: nn.Module,
    tokens: Tensor | Mapping[str, Tensor],
    words: Sequence[str],
    *,
    source_words: Sequence[str] = (),
    name: str = "",
    layer: int | None = None,
    head: int | None = None,
    notes: Sequence[str] = (),
) -> Heads:
    """Look at the heads of any PyTorch model on one text.

    `tokens` is what the model is called with: ids of shape (time) or (1, time), or a mapping of keyword arguments.
    `words` are the tokens in letters; `source_words` those of the text that they attend to in an encoder–decoder. A
    layer is one call of attention, counted from 0 in the order in which they run.
    """
    records = _records(model, tokens)
    texts = numbered(words, _identities(tokens, words)), numbered(source_words)
    chosen = list(_chosen(records, layer, head))
    heads = [one for number, record in chosen for one in heads_of(number, record, *texts, head)]
    return Heads(name or type(model).__name__, *texts, tuple(heads), tuple(notes))


class NoAttention(InputError):
    """A model without a call of PyTorch's attention."""


def _records(model: nn.Module, tokens: Tensor | Mapping[str, Tensor]) -> list[AttentionRecord]:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with torch.no_grad(), evaluating(model), tap(model) as records:
        if isinstance(tokens, Tensor):
            model(tokens.to(device).reshape(1, -1))
        else:
            model(**{key: value.to(device) for key, value in tokens.items()})
    if not records:
        raise NoAttention(
            f"{type(model).__name__} never called PyTorch's scaled dot-product attention: it has no heads to look at."
        )
    return list(records)


def _identities(tokens: Tensor | Mapping[str, Tensor], words: Sequence[str]) -> Sequence[Hashable] | None:
    """What makes two tokens the same: their ids where these are given, for two ids may be spelt alike."""
    if not isinstance(tokens, Tensor) or tokens.is_floating_point():
        return None
    if tokens.numel() != len(words):
        raise InputError(f"{tokens.numel()} tokens, but {len(words)} words to call them. Give one word for each token.")
    return tokens.reshape(-1).tolist()


def _chosen(
    records: Sequence[AttentionRecord], layer: int | None, head: int | None
) -> Iterator[tuple[int, AttentionRecord]]:
    if layer is not None and not 0 <= layer < len(records):
        raise InputError(
            f"layer = {layer} is none of this model's: it has {_range('layer', len(records))}, counted from 0."
        )
    for number, record in enumerate(records):
        heads = record.queries.shape[1]
        if layer not in (None, number):
            continue
        if head is not None and not 0 <= head < heads:
            raise InputError(
                f"head = {head} is none of layer {number}'s: it has {_range('head', heads)}, counted from 0."
            )
        yield number, record


def _range(what: str, count: int) -> str:
    return f"{what} 0 only" if count == 1 else f"{what}s 0 to {count - 1}"
