"""All attention heads of a model on a text: the model runs once with recording on, and the weights are recomputed."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from markupsafe import Markup
from torch import Tensor, nn

from lemma.data.store import read_tokens
from lemma.data.tokenizers import PRETRAINED, Tokenizer
from lemma.errors import DataError, InputError, LemmaError, SpecError, describe_unknown
from lemma.inspection import drawing, patterns
from lemma.inspection.page import MAX_NAMED_HEADS, render_page
from lemma.inspection.patterns import PatternMatch, Statistics
from lemma.kernels.support import is_available
from lemma.layers.attention import Attention
from lemma.layers.penalties import AttentionRows, row_sums
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.base import LanguageModel, evaluating, tokens_per_batch
from lemma.report.numbers import VisibleToken, number_tokens, pluralize
from lemma.report.result import Block, Pre, Result, Table, Text
from lemma.runs.load import Run
from lemma.spec.models import SPECIAL_TOKENS, BodySpec, Classifier, Encoder, Transformer, Tree, max_text_tokens

MAX_TOKENS = 512  # of a text are read: each head keeps a matrix of their square
MAX_WEIGHTS = 200_000  # weights in a dictionary; if there are more they are left out, and it says so
MAX_DRAWN_HEADS = 72  # heads in a terminal; of more only the patterns are shown
MANY_HEADS_HINT = (
    "To draw one head: --layer and --head. All of them: --out heads.html (a page) or heads.csv (the table)."
)
MASKED = -1e30  # some models add the most negative number instead of −∞
SINKS_NOTE = (
    "This model has attention sinks: each head has one more key, without a value, which takes {:.3f} of its attention "
    "on average. Weights and figures are of the tokens only, so that a row sums to 1 minus its sink's share."
)
NO_HEADS = (
    "{} is a run of the family {}, which has no attention heads. Train one that does: lemma train decoder --text "
    "shakespeare --out runs/decoder"
)
CROSS_ATTENTION_NAMES = ("cross", "encoder_attn", "encdec", "multihead_attn")  # of attention to another text
NOTEBOOK_FRAME = Markup(
    '<iframe title="Attention heads" sandbox="allow-scripts allow-downloads" '
    'style="width:100%;height:760px;border:1px solid #ccc" srcdoc="{}"></iframe>'
)


@dataclass(frozen=True, eq=False)
class Head:
    """One attention head on one text: its tokens, its attention weights, and the scores they were computed from.

    α_ij = softmax_j(scale · q_i·k_j + bias_ij) over the allowed keys j; the head's output is Σ_j α_ij v_j. With an
    attention sink the softmax is over the keys and the sink, so that a row sums to less than 1.
    """

    layer: int
    head: int
    name: str  # the path of the attention module inside the model
    query_tokens: tuple[VisibleToken, ...]
    key_tokens: tuple[VisibleToken, ...]
    is_cross: bool  # the keys come from another text than the queries
    weights: Float[np.ndarray, "queries keys"]
    scores: Float[np.ndarray, "queries keys"]  # scaled, with bias; −∞ where a key is masked
    allowed: Bool[np.ndarray, "queries keys"]
    bias: Float[np.ndarray, "queries keys"] | None  # added to scaled scores of allowed keys (ALiBi, relative biases)
    queries: Float[np.ndarray, "queries width"]
    keys: Float[np.ndarray, "keys width"]
    values: Float[np.ndarray, "keys value_width"] | None
    scale: float
    statistics: Statistics
    matches: tuple[PatternMatch, ...]  # of all patterns that these tokens could show
    sink: float | None = None  # score of the attention sink, a key without a value

    @property
    def sink_fraction(self) -> float | None:
        """Mean fraction of attention that goes to the attention sink; None without a sink."""
        return None if self.sink is None else float(1 - self.weights.sum(1).mean())

    @property
    def title(self) -> str:
        """Heading such as "Layer 1, head 0"."""
        return f"Layer {self.layer}, head {self.head}"

    @property
    def nearest(self) -> PatternMatch | None:
        """Best-scoring pattern, even if the head does not match it; None without patterns."""
        return patterns.best_pattern(self.matches)

    @property
    def pattern(self) -> str:
        """Name of the pattern that this head matches, such as "previous"; else "broad" (near uniform) or "none"."""
        return patterns.pattern_name(self.nearest, self.statistics.breadth)

    @property
    def matched_pattern(self) -> PatternMatch | None:
        """Score of the pattern that this head matches; None if it matches no pattern."""
        return self.nearest if self.nearest and self.nearest.pattern == self.pattern else None

    def record(self) -> dict[str, Any]:
        """Return the head's statistics and best pattern as a flat dictionary, for CSV."""
        names = {"layer": self.layer, "head": self.head, "name": self.name}
        nearest = {"nearest": "pattern", "score": "score", "uniform": "uniform", "rows": "rows"}
        match = {key: getattr(self.nearest, field, None) for key, field in nearest.items()}
        return {**names, **asdict(self.statistics), "sink": self.sink_fraction, "pattern": self.pattern, **match}


@dataclass(frozen=True, eq=False)
class Heads(Result):
    """The attention heads of a model on one text."""

    model: str
    tokens: tuple[VisibleToken, ...]
    source: tuple[VisibleToken, ...]  # the other text, if there is one that the tokens attend to
    heads: tuple[Head, ...]
    notes: tuple[str, ...] = ()  # on what was left out

    def heads_by_layer(self) -> dict[int, list[Head]]:
        """Return the heads grouped by layer number."""
        layers: dict[int, list[Head]] = {}
        for head in self.heads:
            layers.setdefault(head.layer, []).append(head)
        return layers

    def heads_by_pattern(self) -> dict[str, list[tuple[Head, PatternMatch]]]:
        """Return by pattern the heads that match it with their scores, best first; a head may match several."""
        matching: dict[str, list[tuple[Head, PatternMatch]]] = {name: [] for name in patterns.MEANINGS}
        for head in self.heads:
            for match in head.matches:
                if match.gain >= patterns.MIN_GAIN and match.rows >= patterns.MIN_ROWS:
                    matching[match.pattern].append((head, match))
        return {name: sorted(pairs, key=lambda pair: -pair[1].gain) for name, pairs in matching.items() if pairs}

    def clearest_head(self) -> Head:
        """Return the head that matches its pattern best, or the first head if none matches."""
        return max(self.heads, key=lambda head: head.matched_pattern.gain if head.matched_pattern else 0.0)

    @property
    def title(self) -> str:
        """Heading "Attention of MODEL"."""
        return f"Attention of {self.model}"

    def blocks(self) -> Iterator[Block]:
        """Yield small images of the heads, the table, and for a single head what each token attends to."""
        yield Text(f"{self.model}: {pluralize(len(self.heads), 'head')} on {pluralize(len(self.tokens), 'token')}")
        yield Text(drawing.list_tokens(self.tokens), blank_before=True)
        pattern_names, many = {head.pattern for head in self.heads}, len(self.heads) > MAX_DRAWN_HEADS
        meanings = [f"{name}: {meaning}." for name, meaning in patterns.MEANINGS.items() if name in pattern_names]
        if many:
            yield Pre(((drawing.draw_pattern_letters(self), ""),))
            lines = (f"{drawing.PATTERN_LETTERS[line.split(':')[0]]}  {line}" for line in meanings)
            yield Text("\n".join(lines), blank_before=True)
            best = [
                (
                    name,
                    str(len(pairs)),
                    f"{pairs[0][1].uniform:.3f}",
                    "  ".join(f"{head.layer}.{head.head} {match.score:.2f}" for head, match in pairs[:MAX_NAMED_HEADS]),
                )
                for name, pairs in self.heads_by_pattern().items()
            ]
            yield Table(("pattern", "heads", "uniform", "layer.head and score of the best"), best, left=(0, 3))
            yield Text(MANY_HEADS_HINT, "note", blank_before=True)
            yield from (Text(note, blank_before=True) for note in self.notes)
            return
        for layer, heads in self.heads_by_layer().items():
            yield Pre(((drawing.draw_layer(layer, heads), ""),))
        yield Text("\n".join([drawing.SHADES_LEGEND, *meanings]), blank_before=True)
        rows: list[tuple[str, ...]] = []  # `uniform` is what entropy and score are of uniform weights
        with_sinks = any(head.sink is not None for head in self.heads)
        for head in self.heads:
            numbers, nearest = head.statistics, head.nearest
            distance = "–" if numbers.distance is None else f"{numbers.distance:.2f}"
            match = (nearest.pattern, f"{nearest.score:.3f}", f"{nearest.uniform:.3f}") if nearest else ("–", "", "")
            means = (f"{numbers.entropy:.3f}", f"{numbers.uniform_entropy:.3f}", distance, f"{numbers.first:.3f}")
            if with_sinks:
                means = (*means, "–" if head.sink_fraction is None else f"{head.sink_fraction:.3f}")
            rows.append((f"{head.layer}.{head.head}", *means, head.pattern, *match))
        numbers = ("entropy", "uniform", "distance", "to first", *(("to sink",) if with_sinks else ()))
        header = ("head", *numbers, "pattern", "nearest", "score", "uniform")
        yield Table(header, rows, left=(0, len(numbers) + 1, len(numbers) + 2))
        if len(self.heads) == 1:
            yield Text(drawing.list_attended_tokens(self.heads[0]), blank_before=True)
        yield from (Text(note, blank_before=True) for note in self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary: tokens, and each head's statistics, patterns and, if few, weights."""
        with_weights = sum(head.weights.size for head in self.heads) <= MAX_WEIGHTS
        heads: list[dict[str, Any]] = []
        for head in self.heads:
            properties = {
                "cross": head.is_cross,
                "masked": not head.allowed.all(),
                "scale": head.scale,
                "patterns": {m.pattern: {"score": m.score, "uniform": m.uniform, "rows": m.rows} for m in head.matches},
                "weights": head.weights.tolist() if with_weights else None,
            }
            heads.append(head.record() | properties)
        texts = {"tokens": self.tokens, "source": self.source}
        return {
            "model": self.model,
            **{name: [{"index": word.index, "text": word.text} for word in words] for name, words in texts.items()},
            "notes": [*self.notes, *([] if with_weights else ["Weights are left out: choose a layer and a head."])],
            "heads": heads,
        }

    def records(self) -> list[dict[str, Any]]:
        """Return a row of statistics per head for CSV."""
        return [head.record() for head in self.heads]

    def svg(self) -> str:
        """Return an SVG drawing: a single head in full, or a grid of images of all heads."""
        if len(self.heads) == 1:
            return drawing.draw_head(self.heads[0])
        layers = self.heads_by_layer().values()
        size = {"width": 70 + max(map(len, layers)) * 108, "height": 44 + len(layers) * 134}
        return drawing.render_template("grid.svg", heads=self, **size, image=drawing.png_url)

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return by file suffix the functions that render the heads as a file's text: .html, .svg and others."""
        return super().writers() | {".html": lambda: render_page(self), ".svg": self.svg}

    def _repr_html_(self) -> str:
        """Return the interactive page in an HTML frame, for notebooks."""
        return NOTEBOOK_FRAME.format(render_page(self))


def look_at_run(
    run: Run,
    text: str | None = None,
    *,
    repeated: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    **unknown_settings: Any,
) -> Heads:
    """Analyse the attention heads of a run on the first tokens of a text, as many as the model reads at once.

    `repeated` reads, instead of a text, that many random tokens twice, which reveals induction heads (Olsson et al.
    2022). `layer` and `head` select heads, counted from 0; `unknown_settings` are refused.
    """
    for word in unknown_settings:
        raise SpecError(describe_unknown("look: setting", word, ("text", "repeated", "layer", "head")))
    body = run.spec.body if isinstance(run.spec, Classifier) else run.spec
    reads_texts = isinstance(run.spec, Classifier | Encoder) and not isinstance(body, Tree)
    model = run.module if reads_texts else run.model
    before, after = run.tokenizer.boundary_tokens(isinstance(body, Transformer))
    # special tokens past the vocabulary
    adds_special = reads_texts and run.tokenizer.kind != PRETRAINED and bool(before)
    if reads_texts and isinstance(body, BodySpec):
        limit = max_text_tokens(body) - 2 * adds_special
    else:
        limit = run.model.receptive_field
    most = min(limit or MAX_TOKENS, MAX_TOKENS)
    if repeated is not None and text is None:
        ids = repeated_tokens(run.tokenizer, repeated, most)
    elif not isinstance(text, str) or repeated is not None:
        raise InputError(
            f"text = {text!r}: give the text for the model to read, as in text='to be or not', or instead of it "
            "how many random tokens are repeated, as in repeated=50."
        )
    else:
        ids = run.tokenizer.encode(text)
    if not len(ids):
        raise DataError("the text has no tokens: there is nothing to look at. Give some, as in --text 'to be or not'.")
    notes = [f"The text has {len(ids):,} tokens; the first {most} were read."] if len(ids) > most else []
    ids = np.asarray(ids[:most], dtype=np.int64)
    words = run.tokenizer.token_strings(ids)
    if adds_special:
        ids, words = np.concatenate([before, ids, after]), [SPECIAL_TOKENS[0], *words, SPECIAL_TOKENS[1]]
    try:
        return look_at(model, torch.from_numpy(ids), words, name=run.path.name, layer=layer, head=head, notes=notes)
    except NoAttentionError:
        raise InputError(NO_HEADS.format(run.path, getattr(run.spec, "family", "model"))) from None


@dataclass(frozen=True)
class HeadMeans(Result):
    """Mean entropy and attention distance of every head (by layer and head) over all tokens of a text.

    Entropy is the mean of that of a row of weights, in nats; distance the root of the mean squared distance to what is
    attended to, in tokens. Uniform attention on the same rows has `uniform_entropy`; a head that sees less has less.
    """

    model: str
    source: str  # where the text is from
    tokens: int
    length: int  # tokens of a window, each of which was read by itself
    entropy: tuple[tuple[float, ...], ...]
    distance: tuple[tuple[float, ...], ...]
    uniform_entropy: float
    json_names = ("model", "source", "tokens", "length", "uniform_entropy", "heads")

    @property
    def title(self) -> str:
        """Heading "Attention of MODEL over a text"."""
        return f"Attention of {self.model} over a text"

    @property
    def heads(self) -> list[dict[str, Any]]:
        """Dictionaries of layer, head, entropy and distance, one per head."""
        return self.records()

    def records(self) -> list[dict[str, Any]]:
        """Return a row of entropy and distance per head for CSV."""
        return [
            {"layer": layer, "head": head, "entropy": entropy, "distance": self.distance[layer][head]}
            for layer, heads in enumerate(self.entropy)
            for head, entropy in enumerate(heads)
        ]

    def blocks(self) -> Iterator[Block]:
        """Yield tables of entropy and distance by layer and head."""
        yield Text(f"{self.model} on {self.tokens:,} tokens of {self.source}, in windows of {self.length}")
        rows = [
            (f"{record['layer']}.{record['head']}", f"{record['entropy']:.3f}", f"{record['distance']:.1f}")
            for record in self.records()
        ]
        yield Table(("head", "entropy", "distance"), rows, left=(0,))
        yield Text(
            f"Entropy: the mean over all rows, in nats; uniform attention has {self.uniform_entropy:.3f}. Distance: "
            "the root of the mean squared distance to what is attended to, in tokens.",
            blank_before=True,
        )


def look_at_corpus(run: Run, corpus: str) -> HeadMeans:
    """Measure entropy and attention distance of every head over all tokens of a text, window by window.

    No window's weights are in memory: on a GPU `kernels/row_statistics.py` computes the entropy and the distance of
    each row along with attention; elsewhere they are computed in blocks of rows. `corpus` is a text file or a name.
    """
    hint = "What its heads do on one text: lemma look {} --text '…'"
    model = run.require(LanguageModel, "a language model, whose heads --corpus measures", hint)
    data = read_tokens([corpus], run.tokenizer)
    text = np.asarray(data.item(data.split_names[0]))
    device = next(model.parameters()).device
    spec_context, sliding = getattr(run.spec, "context", None), getattr(run.spec, "window", None)
    reach = None if sliding else model.receptive_field  # a sliding window moves on within the context
    length = min(reach or spec_context or MAX_TOKENS, spec_context or MAX_TOKENS, len(text))
    if not length:
        raise DataError(f"{corpus}: the text has no tokens. Give a longer one.")
    attention = [part for part in model.modules() if isinstance(part, Attention)]
    fused = is_available(device) and bool(attention) and all(part.supports_row_statistics() for part in attention)
    num_windows, remainder = divmod(len(text), length)
    full_windows = text[: num_windows * length].reshape(num_windows, length)
    batch = max(1, tokens_per_batch(device, 64) // length)
    parts = np.array_split(full_windows, -(-num_windows // batch))
    parts += [text[None, num_windows * length :]] if remainder else []
    sums: list[Tensor] = []  # by layer: entropies, squared distances and rows of each head
    with evaluating(model), torch.no_grad():
        for part in parts:
            totals = _row_sums(model, torch.from_numpy(part.astype(np.int64)).to(device), attention if fused else [])
            if not totals:
                raise InputError(NO_HEADS.format(run.path, getattr(run.spec, "family", "model")))
            sums = totals if not sums else [running + other for running, other in zip(sums, totals, strict=True)]
    means = [(running[:2] / running[2].clamp(min=1)).cpu() for running in sums]
    positions = np.arange(len(text))
    num_keys = np.where(positions < num_windows * length, length, remainder)  # that each token sees
    if all(part.causal for part in attention):
        num_keys = np.minimum(positions % length + 1, sliding or length)
    entropy = tuple(tuple(running[0].tolist()) for running in means)
    distance = tuple(tuple(running[1].sqrt().tolist()) for running in means)
    uniform_entropy = float(np.log(num_keys).mean())
    return HeadMeans(run.path.name, corpus, len(text), length, entropy, distance, uniform_entropy)


def _row_sums(model: Any, tokens: Tensor, fused: Sequence[Attention]) -> list[Float[Tensor, "three heads"]]:
    """Run the model on tokens; return for each layer three sums over rows, by head.

    They are those of entropies, of squared distances and of ones. `fused` are the modules that compute them in a GPU
    kernel; if empty, attention is recorded instead.
    """
    read = getattr(model, "vectors", model)
    if not fused:
        with record_attention() as records:
            read(tokens)
        return [torch.stack(row_sums(AttentionRows(record, math.inf))) for record in records]
    rows: list[tuple[Tensor, Tensor]] = []
    try:
        for part in fused:
            part.row_statistics = rows
        read(tokens)
    finally:
        for part in fused:
            part.row_statistics = None
    ones = tokens.new_full(rows[0][0].shape[1:2], tokens.numel(), dtype=torch.float64)
    return [torch.stack([*(statistic.sum((0, 2), dtype=torch.float64) for statistic in pair), ones]) for pair in rows]


def repeated_tokens(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[int]:
    """Return the special tokens that begin a text, then `count` different random tokens twice in the same order.

    On such a sequence a model can predict a token only from what followed the same token before. So the score of the
    pattern `induction` on it is that of an induction head (Olsson et al. 2022, "In-context learning and induction
    heads"): the mean attention from each token's second occurrence to the token after its first.
    """
    special = {*tokenizer.prefix, *tokenizer.suffix, *tokenizer.stop_tokens, tokenizer.bos, tokenizer.unk}
    ordinary_ids = [token for token in range(tokenizer.vocabulary) if token not in special]
    max_count = min(len(ordinary_ids), (max_tokens - len(tokenizer.prefix)) // 2)
    if isinstance(count, bool) or not isinstance(count, int) or not patterns.MIN_ROWS <= count <= max_count:
        raise InputError(
            f"repeated = {count!r}: give a whole number of tokens from {patterns.MIN_ROWS} to {max_count}."
        )
    first_half = np.random.default_rng(0).choice(ordinary_ids, count, replace=False).tolist()
    return [*tokenizer.prefix, *first_half, *first_half]


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
    """Analyse the attention heads of any PyTorch model on one sequence.

    Args:
        model: a module that calls PyTorch's attention.
        tokens: input of the model: ids of shape (time) or (1, time), or a mapping of keyword arguments.
        words: the tokens as text.
        source_words: for an encoder–decoder, the tokens of its source text.
        name: of the model, for headings.
        layer: analyse only this call of attention, counted from 0 in the order in which they run; `head` likewise.
        notes: sentences to show next to the result.
    """
    inputs = _check_one_sequence(tokens)
    identities = None
    if isinstance(inputs, Tensor) and not inputs.is_floating_point():
        if inputs.numel() != len(words):
            raise InputError(
                f"{pluralize(inputs.numel(), 'token')}, but {pluralize(len(words), 'word')} to name them. "
                "Give one word for each token."
            )
        identities = inputs.reshape(-1).tolist()  # two ids may be spelt alike
    texts = number_tokens(words, identities), number_tokens(source_words)
    records = _record_attention_calls(model, inputs)
    for option, value in (("layer", layer), ("head", head)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(f"{option} = {value!r}: give a whole number, counted from 0.")

    def describe_range(option: str, count: int) -> str:
        return f"it has {f'{option} 0 only' if count == 1 else f'{option}s 0 to {count - 1}'}, counted from 0."

    if layer is not None and not 0 <= layer < len(records):
        raise InputError(f"layer = {layer} is out of range for this model: {describe_range('layer', len(records))}")
    selected = [(number, record) for number, record in enumerate(records) if layer in (None, number)]
    for number, record in selected:
        size = record.queries.shape[1]
        if head is not None and not 0 <= head < size:
            raise InputError(f"head = {head} is out of range for layer {number}: {describe_range('head', size)}")
    heads = [part for number, record in selected for part in _analyse_heads(number, record, *texts, head)]
    if sink_fractions := [head.sink_fraction for head in heads if head.sink_fraction is not None]:
        notes = [*notes, SINKS_NOTE.format(sum(sink_fractions) / len(sink_fractions))]
    return Heads(name or type(model).__name__, *texts, tuple(heads), tuple(notes))


class NoAttentionError(InputError):
    """A model without a call of PyTorch's attention."""


def _check_one_sequence(tokens: Any) -> Tensor | Mapping[str, Tensor]:
    """Return `tokens` as a model input of one sequence; raise an InputError if it holds none or several."""
    if isinstance(tokens, Mapping):
        inputs = tokens
        named_ids = (tensor for name, tensor in tokens.items() if str(name).endswith("ids"))
        checked = [ids for ids in named_ids if isinstance(ids, Tensor) and ids.dim() == 2]
    else:
        try:
            inputs = torch.as_tensor(tokens)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"tokens = {repr(tokens)[:60]}: give the ids of one text, as in [0, 1, 2], a tensor of them, or a "
                "mapping of the model's keyword arguments."
            ) from None
        checked = [inputs]
    for ids in checked:
        if ids.dim() > 2 or (ids.dim() == 2 and len(ids) != 1):
            raise InputError(
                f"tokens of shape {tuple(ids.shape)}: look at one sequence at a time. Give ids of shape (time) or "
                "(1, time), as in tokens[0]."
            )
    if isinstance(inputs, Tensor) and not inputs.numel():
        raise InputError("tokens are empty: there is nothing to look at. Give the ids of one text, as in [0, 1, 2].")
    return inputs


def _record_attention_calls(model: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> list[AttentionRecord]:
    """Run the model once on `inputs`; return a record (queries, keys, masks, …) of every call of attention."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model = {repr(model)[:60]}: give a PyTorch module; for a run, use lemma.look(run, text=…).")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with torch.no_grad(), evaluating(model), record_attention(model) as records:
        try:
            if isinstance(inputs, Tensor):
                model(inputs.to(device).reshape(1, -1))
            else:
                values = (value.to(device) if isinstance(value, Tensor) else value for value in inputs.values())
                model(**dict(zip(inputs, values, strict=True)))
        except (LemmaError, torch.OutOfMemoryError):
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"{type(model).__name__} cannot read these tokens: {error}") from error
    if not records:
        raise NoAttentionError(
            f"{type(model).__name__} never called PyTorch's scaled dot-product attention: it has no heads to look at."
        )
    return list(records)


def _analyse_heads(
    layer: int,
    record: AttentionRecord,
    tokens: tuple[VisibleToken, ...],
    source: tuple[VisibleToken, ...],
    head_index: int | None,
) -> Iterator[Head]:
    """Yield the heads of one call of attention, in float32 or better, for the last row of the batch.

    `source` has the tokens of another text that it may attend to; `head_index` selects one head.
    """
    query_tokens, key_tokens, cross = _match_tokens(record, tokens, source)
    precision = torch.promote_types(record.queries.dtype, torch.float32)
    for name in ("queries", "keys", "values", "bias", "position_bias"):
        if (part := getattr(record, name)) is not None:
            part = (part[-1:] if part.dim() == 4 else part).to("cpu", precision)
            record = replace(record, **{name: part})
    scores = record.scores()[-1].numpy()
    if np.isnan(scores).any():
        raise InputError(
            f"layer {layer} ({record.name}): its scores are NaN. The weights are damaged, or training diverged."
        )
    shape = (1, *scores.shape)
    added = torch.zeros(shape) if record.bias is None else record.bias.expand(shape)
    if record.position_bias is not None:
        added = added + record.position_bias_at(record.distances())
    added = added.masked_fill(added <= MASKED, 0.0)
    bias = added[-1].numpy() if added.any() else None
    distances = None if cross else np.abs(patterns.key_distances(query_tokens, key_tokens))
    masks = patterns.pattern_masks(query_tokens, key_tokens, cross)
    for head in range(len(scores)) if head_index is None else [head_index]:
        allowed = scores[head] > MASKED
        masked = np.where(allowed, scores[head], -np.inf)
        sink = None if record.sinks is None else float(record.sinks[head])
        most, sums = np.split(patterns.softmax_sums(masked, sink), 2, axis=1)
        powers = np.exp(masked - most)
        weights = np.divide(powers, sums, out=np.zeros_like(powers), where=sums > 0)  # a row that sees nothing is zero
        yield Head(
            layer=layer,
            head=head,
            name=record.name,
            query_tokens=query_tokens,
            key_tokens=key_tokens,
            is_cross=cross,
            weights=weights,
            scores=masked,
            allowed=allowed,
            bias=None if bias is None else bias[head],
            queries=record.queries[-1, head].numpy(),
            keys=record.keys[-1, head].numpy(),
            values=None if record.values is None else record.values[-1, head].numpy(),
            scale=float(record.scale),
            statistics=patterns.measure_weights(weights, allowed, distances),
            matches=tuple(patterns.match_pattern(name, weights, allowed, mask) for name, mask in masks.items()),
            sink=sink,
        )


def _match_tokens(
    record: AttentionRecord, tokens: tuple[VisibleToken, ...], source: tuple[VisibleToken, ...]
) -> tuple[tuple[VisibleToken, ...], tuple[VisibleToken, ...], bool]:
    """Return the tokens of the queries, the tokens of the keys, and whether they belong to two different texts.

    `source` is the text that `tokens` may attend to. The lengths tell the texts apart; if both have the same length,
    the module's path does. A model that reads windows gets its last words.
    """
    new, num_keys = record.queries.shape[-2], record.keys.shape[-2]

    def last(words: tuple[VisibleToken, ...], count: int) -> tuple[VisibleToken, ...]:
        if count > len(words):
            raise InputError(
                f"'{record.name}' attends with {pluralize(count, 'token')}, but got {pluralize(len(words), 'word')}. "
                "Give one word for each token, and source_words for the text of an encoder."
            )
        return words[len(words) - count :]

    name = record.name.lower()
    in_encoder = new == len(source) and "encoder" in name.split(".")
    if source and new == num_keys and (new != len(tokens) or in_encoder):
        return last(source, new), last(source, num_keys), False
    if source and num_keys == len(source) and (num_keys != new or any(word in name for word in CROSS_ATTENTION_NAMES)):
        return last(tokens, new), source, True
    return last(tokens, new), last(tokens, num_keys), False
