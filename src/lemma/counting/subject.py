"""Subjects of counting: what builds a module from sizes, resolved from a preset, a spec, a run or a factory."""

import inspect
import math
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import lemma.spec.models as specs
from lemma.adaptation.adapt import adapt_model
from lemma.counting.examples import EXAMPLES
from lemma.counting.fit import DIVISORS, LAYER_COUNTS, Domain, Sizes, fit_polynomials
from lemma.counting.polynomial import Polynomial
from lemma.errors import CountingError, InputError, RunError, SpecError, describe_error, describe_unknown
from lemma.files import read_json
from lemma.hub.architectures import spec_from_config
from lemma.hub.pretrained import CONFIG
from lemma.models.build import SkipInitialization, build
from lemma.models.classifier import TreeModel
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.models.transformer import EncoderModel
from lemma.runs.folder import SPEC, RunFolder, is_run
from lemma.runs.load import always_trainable
from lemma.spec.base import assign_settings, exists
from lemma.spec.choose import Choice, preset_names, resolve_choice, uses_plugins
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method
from lemma.spec.settings import MODEL_SYNONYMS

BATCH, TIME, SOURCE, NODES = "B", "T", "S", "n"
DEFAULT_LENGTH = 64  # tokens per sequence of a model without a context of its own


@dataclass(frozen=True)
class Inputs:
    """The arguments that a module is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A family of modules, one for each assignment of whole numbers to its symbols.

    `make_inputs` makes one batch, on the device in whose context it is called; without it only parameters are counted.
    """

    name: str
    symbols: Sizes  # the sizes asked for
    make_module: Callable[[Sizes], nn.Module]
    make_inputs: Callable[[Sizes], Inputs] | None = None
    input_sizes: Sizes = field(default_factory=dict)  # that only the inputs depend on
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)  # of symbols that the person has not set
    probe_sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of symbols that cannot have all values
    probes_work: bool = False  # whether it is known that the module works at all of them
    domain: Domain = field(default_factory=Domain)  # the sizes at which formulas hold
    identity: str | None = None  # distinguishes it from all other subjects in the cache; without one, nothing is cached
    builds_fresh: bool = True  # whether `make_module` never returns a module, or a part of one, that others hold
    spec: ModelSpec | None = None  # that it was made from; None for a factory
    configured_dtype: str = ""  # of the weights by the configuration, such as bfloat16; the module is built in float32
    setting_names: Mapping[str, str] = field(default_factory=dict)  # of symbols that are letters

    def sizes(self, with_inputs: bool) -> dict[str, int]:
        """Return the requested sizes of the module, with `with_inputs` also those that only its inputs depend on."""
        return {**self.symbols, **(self.input_sizes if with_inputs else {})}

    def resize(self, sizes: Sizes) -> "Subject":
        """Return the subject with requested sizes replaced by `sizes`; symbols that it does not have are ignored."""
        symbols = {name: sizes.get(name, size) for name, size in self.symbols.items()}
        return replace(
            self, symbols=symbols, input_sizes={name: sizes.get(name, size) for name, size in self.input_sizes.items()}
        )

    def build(self, sizes: Sizes, device: str = "meta", random_init: bool = True) -> nn.Module:
        """Build the module at these sizes on a device, with random or (`random_init=False`) zero weights.

        Raises:
            CountingError: it cannot be built at these sizes, or is not a module whose shapes are known.
        """
        try:
            module = self._call_factory(sizes, device, random_init)
        except Exception as error:  # the constructor of other people's code may fail in any way
            raise CountingError(
                f"{self.name} cannot be built at {format_sizes(sizes)}: {describe_error(error)}"
            ) from error
        if not isinstance(module, nn.Module):
            raise CountingError(f"{self.name} gives a {type(module).__name__}, where an nn.Module is expected.")
        lazy = next((name for name, value in module.named_parameters() if nn.parameter.is_lazy(value)), None)
        if lazy:
            raise CountingError(
                f"{self.name} does not know the shape of {lazy} before its first run. Give its layers all their sizes, "
                "or run it once, and count again."
            )
        return copy_module(module, device) if self._shares_tensors else module

    def can_build(self, sizes: Sizes) -> bool:
        """Return whether a module can be built at these sizes."""
        try:
            module = self._call_factory(sizes, "meta", random_init=True)
        except Exception:  # as in `build`, which says why
            return False
        return isinstance(module, nn.Module) and not any(map(nn.parameter.is_lazy, module.parameters()))

    def build_inputs(self, sizes: Sizes, device: str = "meta") -> Inputs:
        """Make one batch of inputs at these sizes; raise a CountingError if the subject does not define inputs."""
        if self.make_inputs is None:
            raise CountingError(f"{self.name} says nothing about its inputs, so only its parameters can be counted.")
        with torch.device(device):
            return self.make_inputs(sizes)

    def _call_factory(self, sizes: Sizes, device: str, random_init: bool) -> nn.Module:
        """Call the factory at these sizes, on a device, with random or zero weights."""
        initialization = nullcontext() if random_init else ZeroInit()
        with torch.device(device), SkipInitialization() if device == "meta" else initialization:
            return self.make_module(sizes)

    @cached_property
    def _shares_tensors(self) -> bool:
        """Return whether two modules of equal sizes share tensors.

        Then the user holds them, and copies must be used.
        """
        if self.builds_fresh:
            return False
        with suppress(Exception), torch.device("meta"), SkipInitialization():
            first, second = (self.make_module(self.sizes(True)) for _ in range(2))
            return first is second or not {*map(id, list_tensors(first))}.isdisjoint(map(id, list_tensors(second)))
        return False


class ZeroInit(TorchFunctionMode):
    """Fills new weights with zeros instead of random numbers, which take most of the time where little else is done.

    Then the module does not depend on chance either: routing of tokens and early exits are always the same.
    """

    RANDOM_INITS = frozenset(
        f"{name}_" for name in ("normal", "uniform", "xavier_uniform", "xavier_normal", "trunc_normal", "orthogonal")
    ) | {"kaiming_uniform_", "kaiming_normal_"}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in self.RANDOM_INITS:
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs["tensor"]
        with torch.no_grad():
            return tensor.zero_()


def list_tensors(module: nn.Module) -> list[Tensor]:
    """List the parameters, buffers and other tensors that a module and its submodules hold as attributes."""
    attributes = (value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor))
    return [*module.parameters(), *module.buffers(), *attributes]


def copy_module(module: nn.Module, device: str) -> nn.Module:
    """Copy a module with its hooks and without gradients; on the meta device the copy takes no memory."""
    copies: dict[int, Any] = {}
    with torch.no_grad():
        for tensor in list_tensors(module):
            copied = torch.empty_like(tensor, device="meta") if device == "meta" else tensor.detach().clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            copies[id(tensor)] = nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied
    try:
        return deepcopy(module, copies)
    except Exception as error:  # attributes of other people's modules may refuse to be copied in any way
        raise CountingError(
            f"{type(module).__name__} cannot be copied ({error}), and counting works on a copy. Give what builds it: "
            "def model(): return Net(); lemma.count(model)"
        ) from error


def format_sizes(sizes: Sizes) -> str:
    """Write sizes as a user types them: d=8 L=2."""
    return " ".join(f"{name}={size}" for name, size in sizes.items())


# From what a person names to a subject.


@dataclass(frozen=True)
class Factory:
    """A factory of modules that was imported by the name `package.module:factory`."""

    name: str
    make: Callable[..., nn.Module]


@dataclass(frozen=True)
class HubConfig:
    """The configuration of a model on the Hugging Face hub, read from the network or the cache."""

    name: str
    config: Mapping[str, Any]


Model = str | Path | ModelSpec | Choice | Factory | HubConfig | Callable[..., nn.Module]


def import_model(model: Any) -> Any:
    """Import the factory `package.module:factory` or `folder/file.py:factory`, or read the configuration `owner/name`.

    Configurations of that form are on the hub. Any other model is returned unchanged.

    Importing a module runs its code, so only a person may name one: call this with what was typed on the command line
    or passed in Python, never with text from a file. `resolve_subject`, whose text may be from a file, never imports.
    """
    is_name = isinstance(model, str) and not exists(Path(model))
    if is_name and re.fullmatch(r"[\w.-]+/[\w.-]+", model) and find_spec("transformers"):
        from lemma.counting.transformers_models import read_hub_config

        return HubConfig(model, config) if (config := read_hub_config(model)) else model
    if is_name and ":" in model:
        return _import_factory(model)
    return model


def _import_factory(name: str) -> Factory:
    """Import the factory `package.module:factory` or `folder/file.py:factory`; the code of its file is run."""
    module, _, attributes = name.rpartition(":")
    path = Path(module).expanduser().resolve()
    is_file = module.endswith(".py")
    if is_file and not path.is_file():
        raise SpecError(f"{name}: there is no file {module}. Expected file.py:factory or package.module:factory.")
    folder = str(path.parent if is_file else Path.cwd())
    sys.path.insert(0, folder)
    try:
        value: Any = _run_file(path) if is_file else import_module(module)
        for attribute in attributes.split("."):
            value = getattr(value, attribute)
    except Exception as error:  # other people's code may fail in any way
        reason = f"{type(error).__name__}: {error}"
        raise SpecError(
            f"{name}: cannot be imported ({reason}). Expected package.module:factory or file.py:factory."
        ) from error
    finally:
        sys.path.remove(folder)
    return Factory(name, value)


def _run_file(path: Path) -> Any:
    """Run a Python file and return its module, which is not among the imported modules under a name of its own."""
    spec = spec_from_file_location(f"lemma_factory_{path.stem}", path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = module_from_spec(spec)  # classes look up their module there
    spec.loader.exec_module(module)
    return module


def resolve_subject(model: Model, settings: Mapping[str, Any] | None = None) -> Subject:
    """Return the `Subject` of a model: the name of a preset, spec file, run folder or example; a spec or a factory.

    `settings` are values of spec fields or factory arguments. A name may come from a file, so `package.module:factory`
    is rejected here; only `import_model` imports it.
    """
    settings = dict(settings or {})
    if isinstance(model, nn.Module):
        name = type(model).__name__
        warnings.warn(
            f"{name} is built already, so that it is counted by number. For formulas, give what builds it, with its "
            f"sizes as arguments: def model(d=8): return {name}(d); lemma.count(model)",
            stacklevel=2,
        )
        return factory_subject(lambda: model, settings, name)
    if callable(model) and not isinstance(model, Choice):
        return factory_subject(model, settings)
    if isinstance(model, Factory):
        return factory_subject(model.make, settings, model.name)
    if isinstance(model, HubConfig):
        return _config_subject(model.config, settings, model.name)
    if isinstance(model, (str, Path)) and Path(model).suffix == ".py":
        raise SpecError(f"{model} is Python code: name the function in it that builds the module, as in {model}:model.")
    if isinstance(model, str) and ":" in model:
        raise SpecError(
            f"model = '{model}' names Python code to import, which a file must not do: it could run any command. "
            f"Expected a preset, a spec file, a run folder or an example ({', '.join([*preset_names(), *EXAMPLES])}). "
            "If you trust that module, name it yourself: "
            "lemma count package.module:factory or file.py:factory, or lemma check parameters package.module:factory "
            "FORMULA."
        )
    if isinstance(model, str) and model in EXAMPLES:
        others = sorted((name, value) for name, value in settings.items() if not isinstance(value, int))
        library = ""
        with suppress(PackageNotFoundError):
            library = version("transformers")
        identity = f"example {model} {others} transformers {library}"
        names = specs.Lstm.letters() | specs.Decoder.letters()
        return replace(factory_subject(EXAMPLES[model], settings, model), identity=identity, setting_names=names)
    is_file = isinstance(model, Path) or (isinstance(model, str) and exists(Path(model)))
    is_preset = not is_file and isinstance(model, str) and model in preset_names()
    if isinstance(model, (str, Path)) and not is_preset and (config := _foreign_config(model)) is not None:
        return _config_subject(config, settings, str(model))
    if isinstance(model, (str, Path)) and not is_preset and is_run(Path(model)):  # also a pretrained model by name
        return _run_subject(RunFolder.open(Path(model)), settings)
    if isinstance(model, str) and not is_file and not is_preset:
        raise SpecError(
            describe_unknown("model", model, [*preset_names(), *EXAMPLES], MODEL_SYNONYMS.get(model.lower()))
            + " A spec file, a run folder, a Hugging Face folder, package.module:factory and file.py:factory do too."
            + ("" if find_spec("transformers") else " Types of transformers models need it: pip install transformers.")
        )
    return spec_subject(model, settings)


def _foreign_config(model: str | Path) -> dict[str, Any] | None:
    """Return the configuration that a model type, file, folder or name on the hub stands for; None for other models.

    Only transformers builds it; of a configuration that Lemma's own models express, the result is None.
    """
    path = Path(model)
    if exists(path):
        path = path / CONFIG if path.is_dir() else path
        if path.suffix != ".json" or not exists(path) or exists(path.parent / SPEC):
            return None
        config = read_json(path)
        try:
            spec_from_config(config)
            return None
        except RunError as error:
            if find_spec("transformers") is None:
                raise RunError(
                    f"{error} With the transformers library, any of its models is counted: pip install transformers. "
                    "A factory is counted too: lemma count file.py:function."
                ) from None
            return config
    if isinstance(model, str) and re.fullmatch(r"[\w.-]+", model) and find_spec("transformers"):
        from lemma.counting.transformers_models import model_types

        return {"model_type": model} if model in model_types() else None
    return None


def _config_subject(config: Mapping[str, Any], settings: dict[str, Any], name: str) -> Subject:
    """Return the family of models of a transformers configuration; an own architecture stays a spec."""
    from lemma.counting.transformers_models import config_subject  # slow to import

    with suppress(RunError):
        if "model_type" in config and len(config) > 1:
            return spec_subject(spec_from_config(config), settings, name)
    return config_subject(config, settings, name)


def _run_subject(folder: RunFolder, settings: dict[str, Any]) -> Subject:
    """Return the family of modules of a run, with other sizes in `settings`; adapted runs include frozen parts."""
    if folder.adaptation is None:
        return spec_subject(folder.spec, settings, str(folder.path))
    method = folder.adaptation.method
    names = type(method).setting_names()
    method = method.replace(**{name: settings.pop(name) for name in list(settings) if name in names})
    base = spec_subject(folder.spec, settings, str(folder.path))
    return adapted_subject(base, method, always_trainable(folder.spec, method), include_frozen=True)


def factory_subject(factory: Any, settings: Mapping[str, Any], name: str | None = None) -> Subject:
    """Return the family of modules that a callable builds; it takes integers by name and returns a module.

    Arguments that are integers are symbols; others are passed on. The factory's attribute `inputs` is a function of the
    same numbers, and of more (such as B and T), that returns the module's inputs. Its attribute `probe_sizes` may list
    sizes to probe at. Counts of it are never cached: what it builds may depend on files or environment variables that
    its source does not show.
    """
    title: str = name or getattr(factory, "__name__", type(factory).__name__)
    signature = inspect.signature(factory).parameters
    parameters = {key: p for key, p in signature.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in signature.values()):
        for key in settings:
            parameters.setdefault(key, inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY))
    make = getattr(factory, "inputs", None)
    input_parameters = inspect.signature(make).parameters if make else {}
    everything = {**input_parameters, **parameters}
    unknown = next((key for key in settings if key not in everything), None)
    if unknown is not None:
        raise SpecError(describe_unknown(f"{title}: setting", unknown, sorted(everything)))
    values = {key: p.default for key, p in everything.items() if p.default is not p.empty} | dict(settings)
    numbers = {key: value for key, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}
    for key in settings:
        parameter = everything[key]
        is_size = key not in parameters or type(parameter.default) is int or parameter.annotation in (int, "int")
        if is_size and key not in numbers:
            raise InputError(f"{key} = {settings[key]!r}: a whole number is expected, as in {key}=8.")
    missing = [key for key in parameters if key not in values]
    if missing:
        raise InputError(f"{title} needs a value for {', '.join(missing)}, as in {missing[0]}=4.")
    symbols = {key: numbers[key] for key in parameters if key in numbers}
    others = {key: value for key, value in values.items() if key in parameters and key not in numbers}

    def make_module(sizes: Sizes) -> nn.Module:
        return factory(**others, **{key: sizes[key] for key in symbols})

    def make_inputs(sizes: Sizes) -> Inputs:
        assert make
        inputs = make(**{key: sizes[key] for key in input_parameters})
        if isinstance(inputs, Inputs):
            return inputs
        if isinstance(inputs, dict):
            return Inputs((), inputs)
        return Inputs(inputs if isinstance(inputs, tuple) else (inputs,))

    return Subject(
        title,
        symbols,
        make_module,
        make_inputs if make else None,
        input_sizes={key: numbers[key] for key in input_parameters if key not in parameters},
        probe_sizes=getattr(factory, "probe_sizes", {}),
        builds_fresh=False,
    )


def spec_subject(model: str | Path | ModelSpec | Choice, settings: dict[str, Any], name: str | None = None) -> Subject:
    """Return the family of models that differ from one spec only in their sizes; `settings` change the spec first.

    `name` is for titles.
    """
    base = resolve_choice(model).model
    input_sizes: dict[str, Any] = {BATCH: settings.pop(BATCH, 1)}
    if isinstance(base, specs.Graph):
        input_sizes[NODES] = settings.pop(NODES, DEFAULT_LENGTH)
    elif isinstance(base, specs.EncoderDecoder):  # a source is as long as the target, unless its length is given
        input_sizes[SOURCE] = settings.pop(SOURCE, settings.get(TIME, settings.get("context", base.context)))
    elif TIME not in base.sizes():
        input_sizes[TIME] = settings.pop(TIME, DEFAULT_LENGTH)
    spec = apply_settings(base, settings)
    for letter, size in input_sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(f"{letter} = {size!r}: a whole number from 1 up is expected, as in {letter}=8.")
    if isinstance(spec, specs.EncoderDecoder) and input_sizes[SOURCE] > spec.context:
        raise InputError(f"S = {input_sizes[SOURCE]}: no source is longer than the context, T = {spec.context}.")
    sizes, body = spec.sizes(), body_spec(spec)
    if "w" in sizes and not _window_slides(body):
        del sizes["w"]  # a window that no text fills changes nothing
    aliases = {"D": "d"} if getattr(body, "tied", False) and "D" in sizes else {}  # one size by two names
    symbols = {letter: size for letter, size in sizes.items() if letter not in aliases}

    def make_module(values: Sizes) -> nn.Module:
        given = {letter: value for letter, value in values.items() if letter in sizes}
        return _with_full_forward(
            build(spec.with_sizes(given | {alias: values[letter] for alias, letter in aliases.items()}))
        )

    return Subject(
        name or (str(model) if isinstance(model, (str, Path)) else spec.family),
        symbols,
        make_module,
        partial(_make_spec_inputs, spec),
        input_sizes,
        defaults=_default_formulas(body),
        probe_sizes=_spec_probe_sizes(spec),
        identity=None if uses_plugins(spec) else f"spec {_fields_besides_sizes(spec)} {sorted(symbols)}",
        spec=spec,
        setting_names=type(body).letters() | type(spec).letters(),
    )


def adapted_subject(
    model: ModelSpec | Subject, method: Method, trainable: Sequence[str] = (), include_frozen: bool = False
) -> Subject:
    """Return the family of adapted models, or of modules with their trainable parameters only.

    `trainable` are path patterns of further parameters that are trained.
    """
    base = model if isinstance(model, Subject) else spec_subject(model, {})
    letters = type(method).letters()
    method_sizes = {letter: int(getattr(method, name)) for letter, name in letters.items()}

    def make_module(sizes: Sizes) -> nn.Module:
        sized = method.replace(**{letter: sizes[letter] for letter in method_sizes})
        adapted = adapt_model(base.make_module(sizes), sized, trainable, any_rank=True).model
        return adapted if include_frozen else _trainable_only(adapted)

    fields = {name: value for name, value in method.to_dict().items() if name not in letters.values()}
    identity = f"{base.identity} learns {fields} {list(trainable)} {'and all' if include_frozen else 'alone'}"
    layers = {letter: LAYER_COUNTS for letter in base.symbols if letter in ("L", "L_enc", "L_dec")}
    return replace(
        base,
        name=f"{base.name}, {method.kind}",
        symbols={**base.symbols, **method_sizes},
        make_module=make_module,
        make_inputs=base.make_inputs if include_frozen else None,
        probe_sizes={**base.probe_sizes, **layers},
        identity=None if base.identity is None else identity,
    )


def _trainable_only(module: nn.Module) -> nn.Module:
    """Return a module that holds only the trainable parameters of `module`, under their paths; it cannot be run."""
    root = nn.Module()
    for path, parameter in module.named_parameters():
        if parameter.requires_grad:
            *parents, name = path.split(".")
            part = root
            for parent in parents:
                if parent not in part._modules:
                    part.add_module(parent, nn.Module())
                part = part.get_submodule(parent)
            part.register_parameter(name, parameter)
    return root


# What depends on the family of a spec.

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
IMAGE_SIZES = {
    "G": [2, 3, 4, 5, 6, 7],  # attention among patches grows with the fourth power
    "P": [2, 3, 4, 5],
    "d_i": list(range(12, 84, 12)),
    "L_i": LAYER_COUNTS,
    "h_i": DIVISORS,
}


def apply_settings(spec: ModelSpec, settings: Mapping[str, Any]) -> ModelSpec:
    """Return a spec with fields changed; fields of a classifier's body or a re-ranker's towers are changed there."""
    if isinstance(spec, specs.CrossAttention):
        names = specs.Reranking.setting_names()
        for_spec = {name: value for name, value in settings.items() if name in names}
        for_towers = {name: value for name, value in settings.items() if name not in names}
        return spec.replace(**for_spec, towers=apply_settings(spec.towers, for_towers).to_dict())
    if not isinstance(spec, specs.TextReader):
        return spec.replace(**assign_settings(settings, {"model": type(spec)})["model"])
    by_owner = assign_settings(settings, {"model": type(spec), "body": type(spec.body)})
    return spec.replace(**{"body": spec.body.replace(**by_owner["body"]).to_dict(), **by_owner["model"]})


def body_spec(spec: ModelSpec) -> ModelSpec:
    """Return the spec of the part that reads text: a classifier's body, a re-ranker's towers, else the spec itself."""
    spec = spec.towers if isinstance(spec, specs.CrossAttention) else spec
    return spec.body if isinstance(spec, specs.TextReader) else spec


def _fields_besides_sizes(spec: ModelSpec) -> dict[str, Any]:
    """Return the fields of a spec that are not sizes, by name."""
    if isinstance(spec, specs.CrossAttention):
        return {"family": spec.family, "towers": _fields_besides_sizes(spec.towers)}
    size_fields = type(spec).letters().values()
    fields = {name: value for name, value in spec.to_dict().items() if name not in size_fields}
    return fields | {"body": _fields_besides_sizes(spec.body)} if isinstance(spec, specs.TextReader) else fields


def _with_full_forward(model: nn.Module) -> nn.Module:
    """Return a model whose call runs all of it: an encoder has a second output, and a tree model none of its own."""
    if isinstance(model, EncoderModel) and (follow := model.follow) is not None:

        def forward_with_all_outputs(tokens: Tensor) -> Tensor:
            """Return all logits in one tensor, so that the backward pass starts from all of them."""
            vectors = model.vectors(tokens)
            follows = follow(vectors[:, 0])
            return follows if model.output is None else torch.cat([model.output(vectors).flatten(1), follows], dim=1)

        model.forward = forward_with_all_outputs
    if isinstance(model, TreeModel):
        model.forward = model.vectors  # a body alone: nothing comes after its vectors
    if isinstance(model, CrossAttentionModel):

        def forward_from_pixels(images: Tensor, tokens: Tensor) -> Tensor:
            """Return the logit of each image with the text of its row."""
            encoded = model.towers.patches(images), model.towers.words(tokens), tokens >= 0
            added = type(model).forward(model, *encoded)
            return model.dual_logits(*encoded) + added

        model.forward = forward_from_pixels  # pyright: ignore[reportAttributeAccessIssue]
    return model


def _make_spec_inputs(spec: ModelSpec, sizes: Sizes) -> Inputs:
    """Make one batch of zeros for a model of this spec, at these sizes."""
    if isinstance(spec, specs.Graph):  # all n² entries of Â: how many of them are edges depends on the graph
        return Inputs((torch.zeros(sizes[NODES], sizes["F"]), torch.zeros(sizes[NODES], sizes[NODES])))
    is_tree = isinstance(body_spec(spec), specs.Tree)  # every word depends on the first: all trees count the same
    tokens = torch.zeros(sizes[BATCH], sizes[TIME], *([2] if is_tree else []), dtype=torch.long)
    if isinstance(spec, specs.EncoderDecoder):
        return Inputs((torch.zeros(sizes[BATCH], sizes[SOURCE], dtype=torch.long), tokens))
    if isinstance(spec, specs.DualEncoder | specs.CrossAttention):
        side = sizes["G"] * sizes["P"]
        return Inputs((torch.zeros(sizes[BATCH], specs.CHANNELS, side, side), tokens))
    return Inputs((tokens,))


def _default_formulas(spec: ModelSpec) -> dict[str, Polynomial]:
    """Return each unset size of a spec as a polynomial of the other sizes, by symbol."""
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
    """Return whether the spec is a decoder whose attention window is at most its context."""
    return isinstance(spec, specs.Decoder) and spec.window is not None and spec.window <= spec.context


def _head_multiple(spec: ModelSpec) -> int:
    """Return the divisor of every head width: 2 with rotary positions, more if they rotate a part of the width."""
    return getattr(getattr(spec, "positions", None), "head_multiple", 1)


def _spec_probe_sizes(spec: ModelSpec) -> dict[str, list[int]]:
    """Return values at which to try those sizes of a spec that cannot take all values, such as heads and widths."""
    body = body_spec(spec)
    if isinstance(body, specs.Graph):
        return {"L": [3, 4, 5, 6]}  # a first layer, a last one, and those between
    if isinstance(body, specs.NewFamily) and body.probe_sizes:
        return {letter: list(sizes) for letter, sizes in body.probe_sizes.items()}
    images = IMAGE_SIZES if isinstance(spec, specs.DualEncoder | specs.CrossAttention) else {}
    if "N" in body.sizes():
        return {**WINDOW_SIZES, **images}
    sizes: dict[str, list[int]] = dict(TRANSFORMER_SIZES) if isinstance(body, specs.Transformer) else {}
    is_grouped, multiple = getattr(body, "key_value_heads", None), _head_multiple(body)
    if is_grouped or multiple > 1:  # much to divide: heads in groups, or the pairs that rotary positions turn
        heads, step = ([12, 24, 36, 48, 72], 144) if is_grouped else (DIVISORS, 12)
        widths = [step * multiple * n for n in range(1, 9)]
        sizes |= {"h": heads, "h_kv": DIVISORS, "d_h": widths, "d_v": widths}
    if isinstance(body, specs.Decoder) and body.window:  # its cache depends on which of the two is longer
        sliding = {"w": [3, 4, 5, 6, 7, 8], TIME: [12, 13, 14, 15, 16, 18]}
        sizes |= sliding if _window_slides(body) else {TIME: list(range(2, body.window))[:8]}
    return {**sizes, **images}
