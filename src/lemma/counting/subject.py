"""What is counted: something that builds a module from sizes."""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lemma.adaptation.adapt import adapt_model, lora_matrix
from lemma.counting.polynomial import Polynomial
from lemma.counting.probe import DIVISORS, fit
from lemma.errors import InputError, LedgerError, SpecError, unknown
from lemma.layers.attention import WindowHead
from lemma.models.build import build
from lemma.models.classifier import TreeModel
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.models.transformer import EncoderModel
from lemma.runs.folder import RunFolder
from lemma.runs.load import always_learned
from lemma.spec.base import distribute
from lemma.spec.choose import Choice, choose
from lemma.spec.models import (
    CHANNELS,
    CrossAttention,
    DualEncoder,
    EncoderDecoder,
    Graph,
    ModelSpec,
    NewFamily,
    Reranking,
    TextReader,
    Transformer,
    Tree,
)
from lemma.spec.presets import PRESETS, brought_sources, preset_names
from lemma.spec.recipe import Method

# What an account is about: something that builds a module from the values of its symbols.


Values = Mapping[str, int]
BATCH = "B"
FILLINGS = {
    "normal_",
    "uniform_",
    "fill_",
    "zero_",
    "xavier_uniform_",
    "kaiming_uniform_",
    "trunc_normal_",
    "constant_",
}


@dataclass(frozen=True)
class Inputs:
    """What a module is called with: positional and named arguments."""

    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A family of modules, one for each assignment of whole numbers to its symbols.

    `symbols` are the sizes asked for; `feed` makes the inputs of one batch, on the device in whose context it is
    called; without it only parameters can be counted. `running` names the symbols that only the inputs depend on.
    `defaults` says what some symbols are in terms of others where the person has not set them. `ladders` gives the
    values at which a symbol may be probed, where any will not do. `identity` tells this subject from all others, for
    the shelf of finished accounts; without one, nothing is kept.
    """

    name: str
    symbols: Values
    make: Callable[[Values], nn.Module]
    feed: Callable[[Values], Inputs] | None = None
    running: Values = field(default_factory=dict)
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)
    ladders: Mapping[str, Sequence[int]] = field(default_factory=dict)
    identity: str | None = None

    def build(self, values: Values, device: str = "meta") -> nn.Module:
        """Build the module there; a refusal says at which sizes."""
        try:
            with torch.device(device), NoFilling() if device == "meta" else nullcontext():
                module = self.make(values)
        except Exception as error:  # a stranger's constructor may refuse in any way
            raise LedgerError(f"{self.name} cannot be built at {sizes_in_words(values)}: {error}") from error
        if not isinstance(module, nn.Module):
            raise LedgerError(f"{self.name} gives a {type(module).__name__}, where an nn.Module is expected.")
        return module

    def can_be_built(self, values: Values) -> bool:
        """Whether the constructor takes these sizes."""
        try:
            self.build(values)
        except LedgerError:
            return False
        return True

    def inputs(self, values: Values, device: str = "meta") -> Inputs:
        """Make one batch there."""
        if self.feed is None:
            raise LedgerError(f"{self.name} says nothing about its inputs, so only its parameters can be counted.")
        with torch.device(device):
            return self.feed(values)

    def sizes(self, running: bool) -> dict[str, int]:
        """The symbols of the module, and if wanted those of its inputs."""
        return {**self.symbols, **(self.running if running else {})}


class NoFilling(TorchFunctionMode):
    """Leaves out the filling of new tensors: on the meta device there is nothing to fill, yet it takes most time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor of a filling function as it is; call any other."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in FILLINGS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def sizes_in_words(values: Values) -> str:
    """Sizes as a person would type them."""
    return " ".join(f"{name}={value}" for name, value in values.items())


# Multi-head self-attention step by step, in the letters of problem E2.


class SelfAttention(nn.Module):
    """Y = [A₁V₁ … A_H V_H] W_O with A = softmax(Q Kᵀ/√M_QK), where Q = X W_Q, K = X W_K, V = X W_V in each head."""

    def __init__(self, E: int, H: int, M_QK: int, M_V: int) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(H, E, M_QK) / math.sqrt(E))
        self.W_K = nn.Parameter(torch.randn(H, E, M_QK) / math.sqrt(E))
        self.W_V = nn.Parameter(torch.randn(H, E, M_V) / math.sqrt(E))
        self.W_O = nn.Parameter(torch.randn(H * M_V, E) / math.sqrt(H * M_V))

    def forward(self, X: Float[Tensor, "S E"]) -> Float[Tensor, "S E"]:
        """Let every vector of a sequence attend to all of them; each step has a name of its own, for the drawing."""
        Q, K, V = X @ self.W_Q, X @ self.W_K, X @ self.W_V
        scores = Q @ K.transpose(-2, -1)
        scaled = scores / math.sqrt(Q.shape[-1])
        A = scaled.softmax(-1)
        heads = A @ V
        concat = heads.transpose(0, 1).flatten(1)
        Y = concat @ self.W_O
        return Y  # noqa: RET504  (the name is drawn)


def self_attention(E: int = 64, H: int = 4, M_QK: int = 16, M_V: int = 16) -> nn.Module:
    """Problem E2: width E, H heads of M_QK for queries and keys and M_V for values; a sequence has S vectors.

    >>> sum(parameter.numel() for parameter in self_attention(E=8, H=2, M_QK=4, M_V=4).parameters())  # 3·8² + 8²
    256
    """
    return SelfAttention(E, H, M_QK, M_V)


def _sequence(E: int, S: int = 32) -> Tensor:
    return torch.zeros(S, E)


self_attention.inputs = _sequence  # pyright: ignore[reportFunctionMemberAccess]


# Factories by name, as examples of what can be counted, and of how a factory says what it is called with.


Feed = Callable[..., Any]
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}  # special tokens have no place in a small vocabulary


def called_with(feed: Feed, **ladders: list[int]) -> Callable[[Any], Any]:
    """Let a factory know what its modules are called with, and at which sizes some symbols may be probed."""

    def mark(factory: Any) -> Any:
        factory.inputs, factory.ladders = feed, ladders
        return factory

    return mark


def _vectors(d: int, B: int = 1, T: int = 64) -> Tensor:
    return torch.zeros(B, T, d)


def _two_streams(d: int, B: int = 1, S: int = 64, T: int = 64) -> tuple[Tensor, Tensor]:
    return torch.zeros(B, S, d), torch.zeros(B, T, d)


def _ids(B: int = 1, T: int = 64) -> dict[str, Any]:
    return {"input_ids": torch.zeros(B, T, dtype=torch.long), "use_cache": True}


@called_with(_two_streams)
def torch_transformer(d: int = 512, h: int = 8, L_enc: int = 6, L_dec: int = 6, d_ff: int = 2048) -> nn.Module:
    """`torch.nn.Transformer`."""
    return nn.Transformer(d, h, L_enc, L_dec, d_ff, dropout=0.0, batch_first=True)


@called_with(_vectors)
def torch_lstm(d: int = 128, D: int = 256, L: int = 2) -> nn.Module:
    """`torch.nn.LSTM`, with its two biases a gate."""
    return nn.LSTM(d, D, L, batch_first=True)


@called_with(_ids)
def gpt2(V: int = 50_257, d: int = 768, L: int = 12, h: int = 12, T: int = 1024) -> nn.Module:
    """The transformers library's GPT-2, small by default: 124,439,808 parameters."""
    config, model = _from_transformers("GPT2Config"), _from_transformers("GPT2LMHeadModel")
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return model(config(vocab_size=V, n_embd=d, n_layer=L, n_head=h, n_positions=T, **dropout, **NO_TOKENS))


@called_with(_ids, h=[12, 24, 36, 48, 72], h_kv=[2, 3, 4, 6, 12], d_h=[2, 4, 6, 8, 10])
def llama(
    V: int = 32_000, d: int = 4096, L: int = 32, h: int = 32, h_kv: int = 8, d_h: int = 128, d_ff: int = 11_008
) -> nn.Module:
    """The transformers library's Llama with grouped heads: h of queries and h_kv of keys and values, each d_h wide."""
    config, model = _from_transformers("LlamaConfig"), _from_transformers("LlamaForCausalLM")
    sizes = {"hidden_size": d, "num_hidden_layers": L, "num_attention_heads": h, "num_key_value_heads": h_kv}
    return model(config(vocab_size=V, intermediate_size=d_ff, head_dim=d_h, **sizes, **NO_TOKENS))


def _inputs(W_in: int, B: int = 1, T: int = 64) -> Tensor:
    return torch.zeros(B, T, W_in)


def window_head(d: int = 64, d_k: int = 64, d_v: int = 64) -> nn.Module:
    """The head of problem A3: queries and keys of width d_k, values of width d_v, no biases."""
    return WindowHead(d, d_k, d_v)


def _from_transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise InputError("this example needs the transformers library: pip install transformers.") from None
    return getattr(transformers, name)


EXAMPLES: dict[str, Any] = {
    "torch-transformer": torch_transformer,
    "torch-lstm": torch_lstm,
    "gpt2": gpt2,
    "llama": llama,
    "self-attention": self_attention,
    "window-head": window_head,
    "lora": called_with(_inputs)(lora_matrix),
}


# Subjects from specs: the family of models that differ from one spec in its sizes only.


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
    if not isinstance(spec, TextReader):
        return spec.replace(**distribute(words, {"model": type(spec)})["model"])
    shares = distribute(words, {"model": type(spec), "body": type(spec.body)})
    return spec.replace(**{"body": spec.body.replace(**shares["body"]).to_dict(), **shares["model"]})


def body_of(spec: ModelSpec) -> ModelSpec:
    """The model itself; of one that reads by a body, its body."""
    spec = towers_of(spec)
    return spec.body if isinstance(spec, TextReader) else spec


def towers_of(spec: ModelSpec) -> ModelSpec:
    """The model itself; of a re-ranker its dual encoder, whose sizes it has."""
    return spec.towers if isinstance(spec, CrossAttention) else spec


def _without_sizes(spec: ModelSpec) -> dict[str, Any]:
    """The words of a spec that are no sizes."""
    if isinstance(spec, CrossAttention):
        return {"family": spec.family, "towers": _without_sizes(spec.towers)}
    kept = {word: value for word, value in spec.to_dict().items() if word not in type(spec).letters().values()}
    return kept | {"body": _without_sizes(spec.body)} if isinstance(spec, TextReader) else kept


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


# Subjects of adapted models: the family of what a method makes of a spec's models, or of what learns in them.


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
        identity=_adapted_identity(plain, method, learn, sizes, whole),
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


def _adapted_identity(
    plain: Subject, method: Method, learn: Sequence[str], sizes: Mapping[str, int], whole: bool
) -> str | None:
    if plain.identity is None:
        return None
    letters = type(method).letters()
    words = {word: value for word, value in method.to_dict().items() if word not in {letters[size] for size in sizes}}
    sources = sorted((Path(__file__).parents[1] / "adaptation").glob("*.py"))
    code = sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{plain.identity} learns {words} {list(learn)} {'and all' if whole else 'alone'} {code}"


# Subjects from what a person names: a preset, a spec file, a run folder, an example, or any factory of modules.
#
# Importing a module runs its code, so only a person may name one. `imported` does so for what was typed on the
# command
# line or passed to the Python API. `subject_of` never imports: it may be called with text read from a file.


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
        identity=_sources_identity(factory, others),
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


def _sources_identity(factory: Any, others: Mapping[str, Any]) -> str | None:
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
