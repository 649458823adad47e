"""Every attention head of a model on a text."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lemma.data.files import write_atomically
from lemma.errors import DataError, InputError, LemmaError, SpecError, unknown
from lemma.inspection.draw import picture, terminal
from lemma.inspection.head import Seen, as_csv, as_dict, as_json, heads_of
from lemma.inspection.page import page
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.base import evaluating
from lemma.report.numbers import counted, numbered
from lemma.runs.load import Run

# The heads of a model on one text, as a result: for the terminal, the notebook, a page or a file.


WRITERS = {".html": page, ".svg": picture, ".json": as_json, ".csv": as_csv}


class Heads(Seen):
    """What every attention head of a model does on one text."""

    def __str__(self) -> str:
        return terminal(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: tokens, and for each head its numbers, its patterns and its weights."""
        return as_dict(self)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that neither it nor the notebook restyles the other."""
        frame = 'sandbox="allow-scripts allow-downloads" style="width:100%;height:760px;border:1px solid #ccc"'
        return f'<iframe title="Attention heads" {frame} srcdoc="{escape(page(self))}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write a page (.html), a picture (.svg), everything (.json) or the table (.csv)."""
        path = Path(path)
        writer = WRITERS.get(path.suffix.lower())
        if writer is None:
            raise InputError(f"{path}: heads are saved as {', '.join(WRITERS)}, not as '{path.suffix}'.")
        if not path.absolute().parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent} to write to. Make it first.")
        write_atomically(path, writer(self))
        return path


# From a model and a text to its heads: run it once with a tap on, and work the weights out again.


MOST_TOKENS = 512  # of a text are read: each head keeps a matrix of their square


def look_at_run(
    run: Run, text: str | None = None, *, layer: int | None = None, head: int | None = None, **others: Any
) -> Heads:
    """Look at the heads of a run on a text: its first tokens, as many as the model sees at once."""
    for word in others:
        raise SpecError(unknown("look: the word", word, ("text", "layer", "head")))
    if not isinstance(text, str):
        raise InputError(f"text = {text!r}: give the text that the model is to read, as in text='to be or not'.")
    ids = run.tokenizer.encode(text)
    if not len(ids):
        raise DataError("the text has no tokens: there is nothing to look at. Give some, as in --text 'to be or not'.")
    most = min(run.model.receptive_field or MOST_TOKENS, MOST_TOKENS)
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
    tokens: Tensor | Sequence[int] | Mapping[str, Tensor],
    words: Sequence[str],
    *,
    source_words: Sequence[str] = (),
    name: str = "",
    layer: int | None = None,
    head: int | None = None,
    notes: Sequence[str] = (),
) -> Heads:
    """Look at the heads of any PyTorch model on one text.

    `tokens` is what the model is called with: ids of shape (time) or (1, time), be it a list, or a mapping of keyword
    arguments.
    `words` are the tokens in letters; `source_words` those of the text that they attend to in an encoder–decoder. A
    layer is one call of attention, counted from 0 in the order in which they run.
    """
    read = _one_sequence(tokens)
    identities = _identities(read, words)
    records = _records(model, read)
    texts = numbered(words, identities), numbered(source_words)
    chosen = list(_chosen(records, layer, head))
    heads = [one for number, record in chosen for one in heads_of(number, record, *texts, head)]
    return Heads(name or type(model).__name__, *texts, tuple(heads), tuple(notes))


class NoAttention(InputError):
    """A model without a call of PyTorch's attention."""


def _one_sequence(tokens: Any) -> Tensor | Mapping[str, Tensor]:
    """What the model is called with, of one text only."""
    if isinstance(tokens, Mapping):
        for name, value in tokens.items():
            if str(name).endswith("ids") and isinstance(value, Tensor) and value.dim() == 2:
                _refuse_batch(value)
        return tokens
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"tokens = {repr(tokens)[:60]}: give the ids of one text, as in [0, 1, 2], a tensor of them, or a mapping "
            "of the model's keyword arguments."
        ) from None
    _refuse_batch(ids)
    if not ids.numel():
        raise InputError("tokens are empty: there is nothing to look at. Give the ids of one text, as in [0, 1, 2].")
    return ids


def _refuse_batch(ids: Tensor) -> None:
    if ids.dim() > 2 or (ids.dim() == 2 and len(ids) != 1):
        raise InputError(
            f"tokens of shape {tuple(ids.shape)}: one sequence at a time is looked at. Give ids of shape (time) or "
            "(1, time), as in tokens[0]."
        )


def _records(model: nn.Module, tokens: Tensor | Mapping[str, Tensor]) -> list[AttentionRecord]:
    if not isinstance(model, nn.Module):
        raise InputError(f"model = {repr(model)[:60]}: give a PyTorch module; of a run, use lemma.look(run, text=…).")
    with torch.no_grad(), evaluating(model), record_attention(model) as records:
        try:
            _call(model, tokens)
        except (LemmaError, torch.OutOfMemoryError):
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"{type(model).__name__} cannot read these tokens: {error}") from error
    if not records:
        raise NoAttention(
            f"{type(model).__name__} never called PyTorch's scaled dot-product attention: it has no heads to look at."
        )
    return list(records)


def _call(model: nn.Module, tokens: Tensor | Mapping[str, Tensor]) -> None:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if isinstance(tokens, Tensor):
        model(tokens.to(device).reshape(1, -1))
    else:
        model(**{key: value.to(device) if isinstance(value, Tensor) else value for key, value in tokens.items()})


def _identities(tokens: Tensor | Mapping[str, Tensor], words: Sequence[str]) -> Sequence[Hashable] | None:
    """What makes two tokens the same: their ids where these are given, for two ids may be spelt alike."""
    if not isinstance(tokens, Tensor) or tokens.is_floating_point():
        return None
    if tokens.numel() != len(words):
        raise InputError(
            f"{counted(tokens.numel(), 'token')}, but {counted(len(words), 'word')} to call them. "
            "Give one word for each token."
        )
    return tokens.reshape(-1).tolist()


def _chosen(
    records: Sequence[AttentionRecord], layer: int | None, head: int | None
) -> Iterator[tuple[int, AttentionRecord]]:
    for name, value in (("layer", layer), ("head", head)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(f"{name} = {value!r}: give a whole number, counted from 0.")
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
