"""What is counted: something that builds a module from sizes, found by the name that a person gave."""

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import lemma.spec.models as specs
from lemma.adaptation.adapt import adapt_model
from lemma.counting.examples import EXAMPLES
from lemma.counting.polynomial import Polynomial
from lemma.counting.probe import DIVISORS, LAYER_COUNTS, Sizes, fit_polynomials
from lemma.errors import CountingError, InputError, SpecError, describe_unknown
from lemma.models.build import SkipInitialization, build
from lemma.models.classifier import TreeModel
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.models.transformer import EncoderModel
from lemma.runs.folder import RunFolder, is_run
from lemma.runs.load import always_trainable
from lemma.spec.base import distribute, exists
from lemma.spec.choose import PRESETS, Choice, choose, preset_names, uses_plugins
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method
from lemma.spec.settings import MODEL_SYNONYMS

BATCH, TIME, SOURCE, NODES = "B", "T", "S", "n"
DEFAULT_LENGTH = 64  # tokens per sequence of a model without a context of its own
WINDOW_SIZES = {"N": [3, 4, 5, 6, 7, 8], TIME: [12, 13, 14, 15, 16, 18]}
"""With one word before it a window needs no mask, and none may be longer than the text."""
TRANSFORMER_SIZES = {
    "V": list(range(5, 13)),
    "h": DIVISORS,
    "d_h": list(range(12, 108, 12)),
    TIME: list(range(9, 17)),
    SOURCE: list(range(2, 9)),
    **dict.fromkeys(("L", "L_enc", "L_dec"), LAYER_COUNTS),
}
"""There are special tokens in the vocabulary, and no source may be longer than the context."""
IMAGE_SIZES = {"G": [2, 3, 4, 5, 6, 7], "P": [2, 3, 4, 5]}  # attention among patches grows with the fourth power
IMAGE_SIZES |= {"d_i": list(range(12, 84, 12)), "L_i": LAYER_COUNTS, "h_i": DIVISORS}


class ZeroInit(TorchFunctionMode):
    """Fills new weights with zeros instead of drawing them, which takes most of the time where few numbers are read.

    So what a module does may not depend on chance either: tokens are routed, and texts left early, always alike.
    """

    RANDOM_INITS = frozenset(
        f"{name}_" for name in ("normal", "uniform", "xavier_uniform", "xavier_normal", "trunc_normal", "orthogonal")
    ) | {"kaiming_uniform_", "kaiming_normal_"}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Put zeros where numbers would be drawn; call any other function."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in self.RANDOM_INITS:
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs["tensor"]
        with torch.no_grad():
            return tensor.zero_()


@dataclass(frozen=True)
class Inputs:
    """What a module is called with: positional and named arguments."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A family of modules, one for each assignment of whole numbers to its symbols.

    `symbols` are the sizes asked for; `feed` makes the inputs of one batch, on the device in whose context it is
    called; without it only parameters can be counted. `running` names the symbols that only the inputs depend on.
    `defaults` says what some symbols are in terms of others where the person has not set them. `probe_sizes` gives the
    values at which a symbol may be probed, where not all are possible. `identity` distinguishes this subject from all
    others, for the cache of finished accounts; without one, nothing is cached. `builds_new` promises that `make` never
    returns a module, or a part of one, that somebody else holds.
    """

    name: str
    symbols: Sizes
    make_module: Callable[[Sizes], nn.Module]
    make_inputs: Callable[[Sizes], Inputs] | None = None
    input_sizes: Sizes = field(default_factory=dict)
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)
    probe_sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    identity: str | None = None
    builds_fresh: bool = True
    spec: ModelSpec | None = None  # of a model that was made from a spec

    @cached_property
    def _shares_tensors(self) -> bool:
        """Whether two modules of the same sizes share tensors: then they are somebody's, and only copies are used."""
        if self.builds_fresh:
            return False
        with suppress(Exception), torch.device("meta"), SkipInitialization():
            first, second = (self.make_module(self.sizes(True)) for _ in range(2))
            return first is second or not {id(t) for t in list_tensors(first)}.isdisjoint(map(id, list_tensors(second)))
        return False

    def build(self, sizes: Sizes, device: str = "meta", random_init: bool = True) -> nn.Module:
        """Build the module there, with weights that are drawn or zero; a refusal says at which sizes."""
        filling = SkipInitialization() if device == "meta" else nullcontext() if random_init else ZeroInit()
        try:
            shared = self._shares_tensors
            with torch.device(device), filling:
                module = self.make_module(sizes)
        except Exception as error:  # the constructor of other people's code may fail in any way
            raise CountingError(f"{self.name} cannot be built at {format_sizes(sizes)}: {error}") from error
        if not isinstance(module, nn.Module):
            raise CountingError(f"{self.name} gives a {type(module).__name__}, where an nn.Module is expected.")
        if lazy := next((name for name, one in module.named_parameters() if nn.parameter.is_lazy(one)), None):
            raise CountingError(
                f"{self.name} does not know the shape of {lazy} before its first run. Give its layers all their sizes, "
                "or run it once, and count again."
            )
        return copy_module(module, device) if shared else module

    def can_build(self, values: Sizes) -> bool:
        """Whether the constructor takes these sizes."""
        try:
            self.build(values)
        except CountingError:
            return False
        return True

    def build_inputs(self, values: Sizes, device: str = "meta") -> Inputs:
        """Make one batch there."""
        if self.make_inputs is None:
            raise CountingError(f"{self.name} says nothing about its inputs, so only its parameters can be counted.")
        with torch.device(device):
            return self.make_inputs(values)

    def sizes(self, with_inputs: bool) -> dict[str, int]:
        """The symbols of the module, and if wanted those of its inputs."""
        return {**self.symbols, **(self.input_sizes if with_inputs else {})}


def list_tensors(module: nn.Module) -> list[Tensor]:
    """List the parameters, buffers and other tensors that a module and its parts hold as attributes."""
    attributes = (value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor))
    return [*module.parameters(), *module.buffers(), *attributes]


def copy_module(module: nn.Module, device: str) -> nn.Module:
    """Copy a module, hooks and all; on the meta device the copy takes no memory. Gradients are not copied."""
    copies: dict[int, Any] = {}
    with torch.no_grad():
        for tensor in list_tensors(module):
            copied = torch.empty_like(tensor, device="meta") if device == "meta" else tensor.detach().clone()
            learned = isinstance(tensor, nn.Parameter)
            copies[id(tensor)] = nn.Parameter(copied, tensor.requires_grad) if learned else copied
    try:
        return deepcopy(module, copies)
    except Exception as error:  # attributes of other people's modules may refuse to be copied in any way
        raise CountingError(
            f"{type(module).__name__} cannot be copied ({error}), and counting works on a copy. Give what builds it: "
            "def model(): return Net(); lemma.count(model)"
        ) from error


def format_sizes(values: Sizes) -> str:
    """Sizes as a person would type them."""
    return " ".join(f"{name}={value}" for name, value in values.items())


@dataclass(frozen=True)
class Factory:
    """A factory of modules that was imported by the name `package.module:factory`."""

    name: str
    make: Callable[..., nn.Module]


Model = str | Path | ModelSpec | Choice | Factory | Callable[..., nn.Module]


def import_model(model: Any) -> Any:
    """Import a model given as `package.module:factory`; return any other model as it is.

    Importing a module runs its code, so only a person may name one: call this with what was typed on the command line
    or passed in Python, never with text from a file. `subject_of`, whose text may be from a file, never imports.
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


def resolve_subject(model: Model, settings: Mapping[str, Any] | None = None) -> Subject:
    """Find what a model's name means: a preset, spec file, run folder or example; or a spec or a factory itself.

    The name may come from a file: `package.module:factory` is refused here, and is imported by `imported` only.
    """
    settings = dict(settings or {})
    if isinstance(model, nn.Module):
        module, name = model, type(model).__name__
        warnings.warn(
            f"{name} is built already, so that it is counted by number. For formulas, give what builds it, with its "
            f"sizes as arguments: def model(d=8): return {name}(d); lemma.count(model)",
            stacklevel=2,
        )
        return factory_subject(lambda: module, settings, name)
    if callable(model) and not isinstance(model, Choice):
        return factory_subject(model, settings)
    if isinstance(model, Factory):
        return factory_subject(model.make, settings, model.name)
    if isinstance(model, str) and ":" in model:
        raise SpecError(
            f"model = '{model}' names Python code to import, which a file must not do: it could run any command. "
            f"Expected a preset, a spec file, a run folder or an example ({', '.join([*preset_names(), *EXAMPLES])}). "
            "If you trust that module, name it yourself: "
            "lemma count package.module:factory, or lemma check parameters package.module:factory FORMULA."
        )
    if isinstance(model, str) and model in EXAMPLES:
        return replace(factory_subject(EXAMPLES[model], settings, model), identity=_example_identity(model, settings))
    if isinstance(model, (str, Path)) and is_run(Path(model)):
        folder = RunFolder.open(Path(model))
        if folder.adaptation is None:
            return spec_subject(folder.spec, settings, str(folder.path))
        method = folder.adaptation.method  # the whole adapted model, frozen parts and all
        known = type(method).setting_names()
        method = method.replace(**{word: settings.pop(word) for word in list(settings) if word in known})
        plain = spec_subject(folder.spec, settings, str(folder.path))
        return adapted_subject(plain, method, always_trainable(folder.spec, method), include_frozen=True)
    if isinstance(model, str) and model not in PRESETS and not exists(Path(model)) and model not in preset_names():
        raise SpecError(
            describe_unknown("model", model, [*preset_names(), *EXAMPLES], MODEL_SYNONYMS.get(model.lower()))
            + " A spec file, a run folder, a Hugging Face folder or package.module:factory will do too."
        )
    return spec_subject(model, settings)


def factory_subject(factory: Any, settings: Mapping[str, Any], name: str | None = None) -> Subject:
    """Any callable that takes whole numbers by name and returns a module.

    Arguments that are whole numbers are symbols; others are passed on. What it is called with is made by its
    attribute `inputs`, a function of the same numbers, of which it may have more (such as B and T). Its attribute
    `probe_sizes` may say at which sizes to probe. It has no identity: what it builds may depend on files, environment
    variables or anything else that its source does not show, so that counts of it are never read from a cache.
    """
    called: str = name or getattr(factory, "__name__", type(factory).__name__)
    takes = inspect.signature(factory).parameters
    known = {word: p for word, p in takes.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()):  # it takes anything, so it takes what was given
        known |= {
            word: inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY) for word in settings if word not in known
        }
    feed = getattr(factory, "inputs", None)
    fed = inspect.signature(feed).parameters if feed else {}
    wrong = next((word for word in settings if word not in known and word not in fed), None)
    if wrong is not None:
        raise SpecError(describe_unknown(f"{called}: the setting", wrong, sorted({*known, *fed})))
    asked = {word: p.default for word, p in [*fed.items(), *known.items()] if p.default is not p.empty} | dict(settings)
    numbers = {word: value for word, value in asked.items() if isinstance(value, int) and not isinstance(value, bool)}
    for word in settings:
        parameter = known.get(word) or fed[word]
        size = type(parameter.default) is int or parameter.annotation in (int, "int")
        if (size or word not in known) and word not in numbers:
            raise InputError(f"{word} = {settings[word]!r}: a whole number is expected, as in {word}=8.")
    others = {word: value for word, value in asked.items() if word not in numbers and word in known}
    missing = [word for word in known if word not in asked]
    if missing:
        raise InputError(f"{called} needs a value for {', '.join(missing)}, as in {missing[0]}=4.")

    def make_inputs(values: Sizes) -> Inputs:
        made = feed(**{word: values[word] for word in fed})  # pyright: ignore[reportOptionalCall]
        if isinstance(made, dict):
            return Inputs((), made)
        return made if isinstance(made, Inputs) else Inputs(made if isinstance(made, tuple) else (made,))

    return Subject(
        called,
        {word: numbers[word] for word in known if word in numbers},
        make_module=lambda values: factory(**others, **{word: values[word] for word in known if word in numbers}),
        make_inputs=make_inputs if feed else None,
        input_sizes={word: numbers[word] for word in fed if word not in known},
        probe_sizes=getattr(factory, "probe_sizes", {}),
        builds_fresh=False,
    )


def spec_subject(model: str | Path | ModelSpec | Choice, settings: dict[str, Any], name: str | None = None) -> Subject:
    """The family of models that differ from one spec in its sizes only."""
    base = choose(model).model
    running: dict[str, Any] = {BATCH: settings.pop(BATCH, 1)}
    if isinstance(base, specs.Graph):
        running[NODES] = settings.pop(NODES, DEFAULT_LENGTH)
    elif isinstance(base, specs.EncoderDecoder):  # a source is as long as the target, unless its length is given
        running[SOURCE] = settings.pop(SOURCE, settings.get(TIME, settings.get("context", base.context)))
    elif TIME not in base.sizes():
        running[TIME] = settings.pop(TIME, DEFAULT_LENGTH)
    spec = apply_settings(base, settings)
    for letter, size in running.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(f"{letter} = {size!r}: a whole number from 1 up is expected, as in {letter}=8.")
    if isinstance(spec, specs.EncoderDecoder) and running[SOURCE] > spec.context:
        raise InputError(f"S = {running[SOURCE]}: no source is longer than the context, T = {spec.context}.")
    sizes, body = spec.sizes(), body_spec(spec)
    if "w" in sizes and not _window_slides(body):
        del sizes["w"]  # a window that no text fills changes nothing
    follows = {"D": "d"} if getattr(body, "tied", False) and "D" in sizes else {}  # one size by two names
    symbols = {letter: value for letter, value in sizes.items() if letter not in follows}

    def make(values: Sizes) -> nn.Module:
        mine = {letter: value for letter, value in values.items() if letter in sizes}
        return _with_full_forward(
            build(spec.with_sizes({**mine, **{letter: values[other] for letter, other in follows.items()}}))
        )

    return Subject(
        name or (str(model) if isinstance(model, (str, Path)) else spec.family),
        symbols,
        make_module=make,
        make_inputs=partial(_make_spec_inputs, spec),
        input_sizes=running,
        defaults=_default_formulas(body),
        probe_sizes=_probe_sizes(spec),
        identity=None if uses_plugins(spec) else f"spec {_fields_besides_sizes(spec)} {sorted(symbols)}",
        spec=spec,
    )


def apply_settings(spec: ModelSpec, settings: Mapping[str, Any]) -> ModelSpec:
    """Let words change a model; those of its body reach its body, those of its towers its towers."""
    if isinstance(spec, specs.CrossAttention):
        own = {word: value for word, value in settings.items() if word in specs.Reranking.setting_names()}
        others = {word: value for word, value in settings.items() if word not in own}
        return spec.replace(**own, towers=apply_settings(spec.towers, others).to_dict())
    if not isinstance(spec, specs.TextReader):
        return spec.replace(**distribute(settings, {"model": type(spec)})["model"])
    shares = distribute(settings, {"model": type(spec), "body": type(spec.body)})
    return spec.replace(**{"body": spec.body.replace(**shares["body"]).to_dict(), **shares["model"]})


def body_spec(spec: ModelSpec) -> ModelSpec:
    """The model itself; of one that reads by a body, its body; of a re-ranker, that of its dual encoder."""
    spec = spec.towers if isinstance(spec, specs.CrossAttention) else spec
    return spec.body if isinstance(spec, specs.TextReader) else spec


def _example_identity(name: str, settings: Mapping[str, Any]) -> str:
    """Return the identity of a built-in example: its name, the settings that are no sizes, the library it uses."""
    others = {word: value for word, value in settings.items() if not isinstance(value, int)}
    try:
        library = version("transformers")
    except PackageNotFoundError:
        library = ""
    return f"example {name} {sorted(others.items())} transformers {library}"


def _fields_besides_sizes(spec: ModelSpec) -> dict[str, Any]:
    """The fields of a spec that are not sizes."""
    if isinstance(spec, specs.CrossAttention):
        return {"family": spec.family, "towers": _fields_besides_sizes(spec.towers)}
    kept = {word: value for word, value in spec.to_dict().items() if word not in type(spec).letters().values()}
    return kept | {"body": _fields_besides_sizes(spec.body)} if isinstance(spec, specs.TextReader) else kept


def _with_full_forward(model: nn.Module) -> nn.Module:
    """Let a call of a model go through all of it: an encoder may have two outputs, or none for tokens."""
    if isinstance(model, EncoderModel) and (follow := model.follow) is not None:

        def all_outputs(tokens: Tensor) -> Tensor:
            """All logits in one tensor, so that what is counted backward starts from all of them."""
            vectors = model.vectors(tokens)
            follows = follow(vectors[:, 0])
            return follows if model.output is None else torch.cat([model.output(vectors).flatten(1), follows], dim=1)

        model.forward = all_outputs
    if isinstance(model, TreeModel):
        model.forward = model.vectors  # a body alone: nothing comes after its vectors
    if isinstance(model, CrossAttentionModel):

        def from_pixels(images: Tensor, tokens: Tensor) -> Tensor:
            """The logit of each image with the text of its row."""
            read = model.towers.patches(images), model.towers.words(tokens), tokens >= 0
            added = type(model).forward(model, *read)
            return model.dual_logits(*read) + added

        model.forward = from_pixels  # pyright: ignore[reportAttributeAccessIssue]
    return model


def _make_spec_inputs(spec: ModelSpec, values: Sizes) -> Inputs:
    """One batch for a model of this spec, of zeros."""
    if isinstance(spec, specs.Graph):  # all n² entries of Â: how many of them are edges depends on the graph
        return Inputs((torch.zeros(values[NODES], values["F"]), torch.zeros(values[NODES], values[NODES])))
    tree = isinstance(body_spec(spec), specs.Tree)  # every word depends on the first: all trees count the same
    tokens = torch.zeros(values[BATCH], values[TIME], *([2] if tree else []), dtype=torch.long)
    if isinstance(spec, specs.EncoderDecoder):
        return Inputs((torch.zeros(values[BATCH], values[SOURCE], dtype=torch.long), tokens))
    if isinstance(spec, specs.DualEncoder | specs.CrossAttention):
        side = values["G"] * values["P"]
        return Inputs((torch.zeros(values[BATCH], specs.CHANNELS, side, side), tokens))
    return Inputs((tokens,))


def _default_formulas(spec: ModelSpec) -> dict[str, Polynomial]:
    """What the unset sizes of a spec are in terms of the others, read off the spec itself."""
    letters = type(spec).letters()
    unset = [letter for letter, name in letters.items() if getattr(spec, name) is None and letter in spec.sizes()]
    if not unset:
        return {}
    step = math.lcm(12, _head_multiple(spec))
    widths = {"d": [step * n for n in range(1, 6)]} if "d" in letters and "d" not in unset else {}
    one_head = {letter: 1 for letter in ("h", "h_kv") if letter in spec.sizes()}

    def sample(values: Sizes) -> dict[str, int]:
        sizes = spec.with_sizes({**values, **one_head}).sizes()
        return {letter: sizes[letter] for letter in unset}

    return fit_polynomials(sample, widths)


def _window_slides(spec: ModelSpec) -> bool:
    """Whether a sliding window is shorter than the context, so that it slides at all."""
    return isinstance(spec, specs.Decoder) and spec.window is not None and spec.window <= spec.context


def _head_multiple(spec: ModelSpec) -> int:
    """What the width of a head must be a multiple of: 2 where pairs are rotated, more where only some of them are."""
    return getattr(getattr(spec, "positions", None), "head_multiple", 1)


def _probe_sizes(spec: ModelSpec) -> dict[str, list[int]]:
    """Where to probe a family for which not all sizes are possible."""
    body = body_spec(spec)
    if isinstance(body, specs.Graph):
        return {"L": [3, 4, 5, 6]}  # a first layer, a last one, and those between
    if isinstance(body, specs.NewFamily) and body.probe_sizes:
        return {letter: list(sizes) for letter, sizes in body.probe_sizes.items()}
    images = IMAGE_SIZES if isinstance(spec, specs.DualEncoder | specs.CrossAttention) else {}
    if "N" in body.sizes():
        return {**WINDOW_SIZES, **images}
    heads: dict[str, list[int]] = {}
    grouped, turned = getattr(body, "key_value_heads", None), _head_multiple(body)
    if grouped or turned > 1:  # much to divide: heads in groups, or the pairs that rotary positions turn
        many, most = ([12, 24, 36, 48, 72], 144) if grouped else (DIVISORS, 12)
        widths = [most * turned * step for step in range(1, 9)]
        heads = {"h": many, "h_kv": DIVISORS, "d_h": widths, "d_v": widths}
    if isinstance(body, specs.Decoder) and body.window:  # what it keeps depends on which of the two is longer
        beyond = {"w": [3, 4, 5, 6, 7, 8], TIME: [12, 13, 14, 15, 16, 18]}
        heads |= beyond if _window_slides(body) else {TIME: list(range(2, body.window))[:8]}
    return {**(TRANSFORMER_SIZES if isinstance(body, specs.Transformer) else {}), **heads, **images}


def adapted_subject(
    model: ModelSpec | Subject, method: Method, trainable: Sequence[str] = (), include_frozen: bool = False
) -> Subject:
    """The family of what learns in adapted models, or of all of them; its sizes are the model's and the method's."""
    plain = model if isinstance(model, Subject) else spec_subject(model, {})
    letters = type(method).letters()
    sizes = {letter: int(getattr(method, name)) for letter, name in letters.items()}

    def make(values: Sizes) -> nn.Module:
        at = method.replace(**{letter: values[letter] for letter in sizes})
        adapted = adapt_model(plain.make_module(values), at, trainable, any_rank=True).model
        if include_frozen:
            return adapted
        learned = nn.Module()  # what learns, in a module that holds nothing else and is not run
        for path, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                *parents, name = path.split(".")
                part = learned
                for parent in parents:
                    if parent not in part._modules:
                        part.add_module(parent, nn.Module())
                    part = part.get_submodule(parent)
                part.register_parameter(name, parameter)
        return learned

    words = {word: value for word, value in method.to_dict().items() if word not in letters.values()}
    identity = f"{plain.identity} learns {words} {list(trainable)} {'and all' if include_frozen else 'alone'}"
    layers = {letter: LAYER_COUNTS for letter in plain.symbols if letter in ("L", "L_enc", "L_dec")}
    return replace(
        plain,
        name=f"{plain.name}, {method.kind}",
        symbols={**plain.symbols, **sizes},
        make_module=make,
        make_inputs=plain.make_inputs if include_frozen else None,
        probe_sizes={**plain.probe_sizes, **layers},
        identity=None if plain.identity is None else identity,
    )
