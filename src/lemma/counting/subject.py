"""What is counted: something that builds a module from sizes, found by the name that a person gave."""

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lemma.adaptation.adapt import adapt_model
from lemma.counting.examples import EXAMPLES
from lemma.counting.polynomial import Polynomial
from lemma.counting.probe import DIVISORS, Values, fit
from lemma.errors import InputError, LedgerError, SpecError, unknown
from lemma.models.build import NoFilling, build
from lemma.models.classifier import TreeModel
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.models.transformer import EncoderModel
from lemma.runs.folder import RunFolder, is_run
from lemma.runs.load import always_learned
from lemma.spec.base import distribute
from lemma.spec.choose import PRESETS, Choice, brought_sources, choose, preset_names
from lemma.spec.models import (
    CHANNELS,
    CrossAttention,
    Decoder,
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
from lemma.spec.recipe import Method

BATCH, TIME, SOURCE, NODES = "B", "T", "S", "n"


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
    `defaults` says what some symbols are in terms of others where the person has not set them. `probe_sizes` gives the
    values at which a symbol may be probed, where not all are possible. `identity` distinguishes this subject from all
    others, for the cache of finished accounts; without one, nothing is cached.
    """

    name: str
    symbols: Values
    make: Callable[[Values], nn.Module]
    feed: Callable[[Values], Inputs] | None = None
    running: Values = field(default_factory=dict)
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)
    probe_sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    identity: str | None = None

    def build(self, values: Values, device: str = "meta") -> nn.Module:
        """Build the module there; a refusal says at which sizes."""
        try:
            with torch.device(device), NoFilling() if device == "meta" else nullcontext():
                module = self.make(values)
        except Exception as error:  # the constructor of other people's code may fail in any way
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


def sizes_in_words(values: Values) -> str:
    """Sizes as a person would type them."""
    return " ".join(f"{name}={value}" for name, value in values.items())


# From names to subjects. Importing a module runs its code, so only a person may name one: `imported` does so for what
# was typed on the command line or passed to the Python API. `subject_of` never imports: its text may be from a file.


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
    if not isinstance(model, str) or ":" not in model:
        return model
    module, _, attribute = model.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # a module may be in the working folder
    try:
        found: Any = import_module(module)
        for step in attribute.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"{model}: cannot be imported ({error}). Expected package.module:factory.") from None
    finally:
        sys.path.remove(here)
    return Factory(model, found)


def subject_of(model: Model, words: Mapping[str, Any] | None = None) -> Subject:
    """Find what a model's name means: a preset, spec file, run folder or example; or a spec or a factory itself.

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
    if isinstance(model, (str, Path)) and is_run(Path(model)):
        return run_subject(RunFolder.open(Path(model)), words)
    if isinstance(model, str) and model not in PRESETS and not Path(model).exists() and model not in preset_names():
        raise SpecError(
            unknown("model", model, [*preset_names(), *EXAMPLES])
            + " A spec file, a run folder, a Hugging Face folder or package.module:factory will do too."
        )
    return spec_subject(model, words)


# Subjects from factories.


def factory_subject(factory: Any, words: Mapping[str, Any], name: str | None = None) -> Subject:
    """Any callable that takes whole numbers by name and returns a module.

    Arguments that are whole numbers are symbols; others are passed on. What it is called with is made by its
    attribute `inputs`, a function of the same numbers, of which it may have more (such as B and T). Its attribute
    `probe_sizes` may say at which sizes to probe.
    """
    called: str = name or getattr(factory, "__name__", type(factory).__name__)
    takes = inspect.signature(factory).parameters
    known = {word: p for word, p in takes.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()):  # it takes anything, so it takes what was given
        known |= {word: inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY) for word in words if word not in known}
    feed = getattr(factory, "inputs", None)
    fed = inspect.signature(feed).parameters if feed else {}
    wrong = next((word for word in words if word not in known and word not in fed), None)
    if wrong is not None:
        raise SpecError(unknown(f"{called}: the setting", wrong, sorted({*known, *fed})))
    asked = {word: p.default for word, p in [*fed.items(), *known.items()] if p.default is not p.empty}
    asked = {**asked, **words}
    numbers = {word: value for word, value in asked.items() if isinstance(value, int) and not isinstance(value, bool)}
    others = {word: value for word, value in asked.items() if word not in numbers and word in known}
    missing = [word for word, p in known.items() if word not in asked and p.default is p.empty]
    if missing:
        raise InputError(f"{called} needs a value for {', '.join(missing)}, as in {missing[0]}=4.")

    def make_inputs(values: Values) -> Inputs:
        made = feed(**{word: values[word] for word in fed})  # pyright: ignore[reportOptionalCall]
        if isinstance(made, Inputs):
            return made
        if isinstance(made, dict):
            return Inputs((), made)
        return Inputs(made if isinstance(made, tuple) else (made,))

    return Subject(
        called,
        {word: numbers[word] for word in known if word in numbers},
        make=lambda values: factory(**others, **{word: values[word] for word in known if word in numbers}),
        feed=make_inputs if feed else None,
        running={word: numbers[word] for word in fed if word not in known},
        probe_sizes=getattr(factory, "probe_sizes", {}),
        identity=_factory_identity(factory, others),
    )


def _factory_identity(factory: Any, others: Mapping[str, Any]) -> str | None:
    """The factory's module and source, and the version of its package; None if these do not determine it."""
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


# Subjects from specs: the family of models that differ from one spec in its sizes only.

SEQUENCE = 64  # tokens per sequence of a model without a context of its own


def spec_subject(model: str | Path | ModelSpec | Choice, words: dict[str, Any], name: str | None = None) -> Subject:
    """The family of models that differ from one spec in its sizes only."""
    base = choose(model).model
    running: dict[str, Any] = {BATCH: words.pop(BATCH, 1)}
    if isinstance(base, Graph):
        running[NODES] = words.pop(NODES, SEQUENCE)
    elif isinstance(base, EncoderDecoder):  # a source is as long as the target, unless its length is given
        running[SOURCE] = words.pop(SOURCE, words.get(TIME, words.get("context", base.context)))
    elif TIME not in base.sizes():
        running[TIME] = words.pop(TIME, SEQUENCE)
    spec = with_words(base, words)
    if isinstance(spec, EncoderDecoder) and _positive(SOURCE, running[SOURCE]) > spec.context:
        raise InputError(f"S = {running[SOURCE]}: no source is longer than the context, T = {spec.context}.")
    sizes, body = spec.sizes(), body_of(spec)
    if "w" in sizes and not _slides(body):
        del sizes["w"]  # a window that no text fills changes nothing
    follows = {"D": "d"} if getattr(body, "tied", False) and "D" in sizes else {}  # one size by two names
    symbols = {letter: value for letter, value in sizes.items() if letter not in follows}

    def make(values: Values) -> nn.Module:
        mine = {letter: value for letter, value in values.items() if letter in sizes}
        return _whole_pass(build(spec.at({**mine, **{letter: values[other] for letter, other in follows.items()}})))

    sources = brought_sources(spec)  # of what other packages bring; None if there are none to read
    return Subject(
        name or (str(model) if isinstance(model, (str, Path)) else spec.family),
        symbols,
        make=make,
        feed=partial(_spec_inputs, spec),
        running={name: _positive(name, size) for name, size in running.items()},
        defaults=_defaults(body),
        probe_sizes=_probe_sizes(spec),
        identity=None if sources is None else f"spec {_without_sizes(spec)} {sorted(symbols)}{sources}",
    )


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
    """The model itself; of one that reads by a body, its body; of a re-ranker, that of its dual encoder."""
    spec = spec.towers if isinstance(spec, CrossAttention) else spec
    return spec.body if isinstance(spec, TextReader) else spec


def _without_sizes(spec: ModelSpec) -> dict[str, Any]:
    """The fields of a spec that are not sizes."""
    if isinstance(spec, CrossAttention):
        return {"family": spec.family, "towers": _without_sizes(spec.towers)}
    kept = {word: value for word, value in spec.to_dict().items() if word not in type(spec).letters().values()}
    return kept | {"body": _without_sizes(spec.body)} if isinstance(spec, TextReader) else kept


def _positive(name: str, size: Any) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InputError(f"{name} = {size!r}: a whole number from 1 up is expected, as in {name}=8.")
    return size


def _whole_pass(model: nn.Module) -> nn.Module:
    """Let a call of a model go through all of it: an encoder may have two outputs, or none for tokens."""
    if isinstance(model, EncoderModel) and model.follow is not None:
        model.forward = partial(_all_outputs, model)
    if isinstance(model, TreeModel):
        model.forward = model.vectors  # a body alone: nothing comes after its vectors
    if isinstance(model, CrossAttentionModel):
        model.forward = partial(_from_pixels, model)  # pyright: ignore[reportAttributeAccessIssue]
    return model


def _all_outputs(model: EncoderModel, tokens: Tensor) -> Tensor:
    """All logits of an encoder in one tensor, so that what is counted backward starts from all of them."""
    vectors = model.vectors(tokens)
    follows = model.follow(vectors[:, 0]) if model.follow is not None else vectors[:, :0, 0]
    return follows if model.output is None else torch.cat([model.output(vectors).flatten(1), follows], dim=1)


def _from_pixels(model: CrossAttentionModel, images: Tensor, tokens: Tensor) -> Tensor:
    """The logit of each image with the text of its row, from pixels and tokens."""
    patches, words, there = model.towers.patches(images), model.towers.words(tokens), tokens >= 0
    added = type(model).forward(model, patches, words, there)
    return model.dual_logits(patches, words, there) + added


def _spec_inputs(spec: ModelSpec, values: Values) -> Inputs:
    """One batch for a model of this spec, of zeros."""

    def tokens(*shape: int) -> Tensor:
        return torch.zeros(values[BATCH], *shape, dtype=torch.long)

    match spec:
        case EncoderDecoder():
            return Inputs((tokens(values[SOURCE]), tokens(values[TIME])))
        case DualEncoder() | CrossAttention():
            side = values["G"] * values["P"]
            return Inputs((torch.zeros(values[BATCH], CHANNELS, side, side), tokens(values[TIME])))
        case Graph():  # all n² entries of Â: how many of them are edges depends on the graph, not on the model
            nodes = values[NODES]
            return Inputs((torch.zeros(nodes, values["F"]), torch.zeros(nodes, nodes)))
    if isinstance(body_of(spec), Tree):  # words that all depend on the first: the count is the same for every tree
        return Inputs((tokens(values[TIME], 2),))
    return Inputs((tokens(values[TIME]),))


def _defaults(spec: ModelSpec) -> dict[str, Polynomial]:
    """What the unset sizes of a spec are in terms of the others, read off the spec itself."""
    letters = type(spec).letters()
    unset = [letter for letter, name in letters.items() if getattr(spec, name) is None and letter in spec.sizes()]
    if not unset:
        return {}
    step = math.lcm(12, _head_multiple(spec))
    widths = {letter: [step * n for n in range(1, 6)] for letter in letters if letter not in unset and letter == "d"}
    one_head = {letter: 1 for letter in ("h", "h_kv") if letter in spec.sizes()}

    def sample(values: Values) -> dict[str, int]:
        sizes = spec.at({**values, **one_head}).sizes()
        return {letter: sizes[letter] for letter in unset}

    return fit(sample, widths)


def _slides(spec: ModelSpec) -> bool:
    """Whether a sliding window is shorter than the context, so that it slides at all."""
    return isinstance(spec, Decoder) and spec.window is not None and spec.window <= spec.context


def _head_multiple(spec: ModelSpec) -> int:
    """What the width of a head must be a multiple of: 2 where pairs are rotated, more where only some of them are."""
    return getattr(getattr(spec, "positions", None), "head_multiple", 1)


FEW_LAYERS = [2, 3, 4, 5]  # layers take time, and are never multiplied with each other
WINDOW_SIZES = {"N": [3, 4, 5, 6, 7, 8], TIME: [12, 13, 14, 15, 16, 18]}
"""With one word before it a window needs no mask, and none may be longer than the text."""
TRANSFORMER_SIZES = {
    "V": list(range(5, 13)),
    "h": DIVISORS,
    "d_h": list(range(12, 108, 12)),
    TIME: list(range(9, 17)),
    SOURCE: list(range(2, 9)),
    **dict.fromkeys(("L", "L_enc", "L_dec"), FEW_LAYERS),
}
"""There are special tokens in the vocabulary, and no source may be longer than the context."""
IMAGE_SIZES = {
    "G": [2, 3, 4, 5, 6, 7],  # attention among patches grows with the fourth power
    "P": [2, 3, 4, 5],
    "d_i": list(range(12, 84, 12)),
    "L_i": FEW_LAYERS,
    "h_i": DIVISORS,
}


def _probe_sizes(spec: ModelSpec) -> dict[str, list[int]]:
    """Where to probe a family for which not all sizes are possible."""
    body = body_of(spec)
    if isinstance(body, Graph):
        return {"L": [3, 4, 5, 6]}  # a first layer, a last one, and those between
    if isinstance(body, NewFamily) and body.probe_sizes:
        return {letter: list(sizes) for letter, sizes in body.probe_sizes.items()}
    images = IMAGE_SIZES if isinstance(spec, DualEncoder | CrossAttention) else {}
    if "N" in body.sizes():
        return {**WINDOW_SIZES, **images}
    heads: dict[str, list[int]] = {}
    grouped, turned = getattr(body, "key_value_heads", None), _head_multiple(body)
    if grouped or turned > 1:  # much to divide: heads in groups, or the pairs that rotary positions turn
        many, most = ([12, 24, 36, 48, 72], 144) if grouped else (DIVISORS, 12)
        widths = [most * turned * step for step in range(1, 9)]
        heads = {"h": many, "h_kv": DIVISORS, "d_h": widths, "d_v": widths}
    if isinstance(body, Decoder) and body.window:  # what it keeps depends on which of the two is longer
        beyond = {"w": [3, 4, 5, 6, 7, 8], TIME: [12, 13, 14, 15, 16, 18]}
        heads |= beyond if _slides(body) else {TIME: list(range(2, body.window))[:8]}
    return {**(TRANSFORMER_SIZES if isinstance(body, Transformer) else {}), **heads, **images}


# Subjects from adapted models: what a method makes of a spec's models, or only what learns in them.


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
    letters = type(method).letters()
    sizes = {letter: int(getattr(method, name)) for letter, name in letters.items()}

    def make(values: Values) -> nn.Module:
        at = method.replace(**{letter: values[letter] for letter in sizes})
        adapted = adapt_model(plain.make(values), at, learn, any_rank=True).model
        return adapted if whole else _only_learned(adapted)

    identity = None
    if plain.identity is not None:
        words = {word: value for word, value in method.to_dict().items() if word not in letters.values()}
        sources = sorted((Path(__file__).parents[1] / "adaptation").glob("*.py"))
        code = sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
        identity = f"{plain.identity} learns {words} {list(learn)} {'and all' if whole else 'alone'} {code}"
    layers = {letter: FEW_LAYERS for letter in plain.symbols if letter in ("L", "L_enc", "L_dec")}
    return replace(
        plain,
        name=f"{plain.name}, {method.kind}",
        symbols={**plain.symbols, **sizes},
        make=make,
        feed=plain.feed if whole else None,
        probe_sizes={**plain.probe_sizes, **layers},
        identity=identity,
    )


def _only_learned(model: nn.Module) -> nn.Module:
    """What learns of a module, as a module that holds nothing else and is not run."""
    whole = nn.Module()
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            *parents, name = path.split(".")
            part = whole
            for parent in parents:
                if parent not in part._modules:
                    part.add_module(parent, nn.Module())
                part = part.get_submodule(parent)
            part.register_parameter(name, parameter)
    return whole
