"""Subjects from configurations of the transformers library: any model type, with sizes by the letters of papers.

A configuration's class builds the model without weights; no file's code is run. Sizes are found in the configuration
by the names that its class gives them. Lists with an entry per layer are extended for other depths.
"""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from math import gcd
from typing import Any

import torch
from torch import nn

from lemma.counting.derived import find_divisors
from lemma.counting.fit import LAYER_COUNTS, Domain, ProbeSizes, Sizes, sample_sizes
from lemma.counting.measure import ModuleReader, single_thread
from lemma.counting.polynomial import Polynomial, symbol
from lemma.counting.subject import BATCH, DEFAULT_LENGTH, SOURCE, TIME, Inputs, Subject
from lemma.errors import CountingError, InputError, SpecError, describe_error, describe_unknown

Config = dict[str, Any]
FIELDS: dict[str, tuple[str, ...]] = {  # by letter: names of the field, of which a configuration has one
    "V": ("vocab_size",),
    "d": ("hidden_size", "n_embd", "d_model", "emb_dim", "dim"),
    "d_emb": ("embedding_size",),
    "L": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "L_enc": ("encoder_layers", "num_encoder_layers"),
    "L_dec": ("decoder_layers", "num_decoder_layers"),
    "h": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "h_enc": ("encoder_attention_heads", "num_encoder_attention_heads"),
    "h_dec": ("decoder_attention_heads", "num_decoder_attention_heads"),
    "h_kv": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "d_h": ("head_dim", "d_kv", "kv_channels"),
    "d_ff": ("intermediate_size", "ffn_hidden_size", "n_inner", "d_ff", "ffn_dim", "hidden_dim", "d_inner"),
    "d_ff_enc": ("encoder_ffn_dim",),
    "d_ff_dec": ("decoder_ffn_dim",),
    "d_e": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "d_s": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "E": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "E_s": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
    "w": ("sliding_window", "sliding_window_size"),
    "N": ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
    "r_q": ("q_lora_rank",),
    "r_kv": ("kv_lora_rank",),
    "d_rope": ("qk_rope_head_dim", "rotary_dim"),
    "d_nope": ("qk_nope_head_dim",),
    "d_v": ("v_head_dim",),
    "n": ("state_size", "mamba_d_state", "ssm_state_size"),
    "r": ("time_step_rank", "mamba_dt_rank"),
    "I": ("image_size",),
    "P": ("patch_size",),
    "C_in": ("num_channels",),
    "c": ("conv_kernel", "mamba_d_conv", "conv_L_cache", "linear_conv_kernel_dim"),
    "C": ("chunk_size", "mamba_chunk_size", "attention_chunk_size"),
    "h_m": ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads"),
    "d_ssm": ("mamba_d_ssm",),
    "d_m": ("mamba_head_dim", "mamba_d_head", "mamba_headdim"),
    "h_lk": ("linear_num_key_heads", "linear_num_heads"),
    "h_lv": ("linear_num_value_heads",),
    "d_lk": ("linear_key_head_dim", "linear_head_dim"),
    "d_lv": ("linear_value_head_dim",),
}
LETTERS = {name: letter for letter, names in FIELDS.items() for name in names}
DEPTHS = ("L", "L_enc", "L_dec")
INPUT_SIZES = (BATCH, TIME, SOURCE)
DEFAULT_IMAGE_SIZE = 224
FACTORY_HINT = (
    " A function in a Python file that returns the module is counted too: lemma count file.py:function d=512, "
    "with sizes as its arguments."
)
POSITIVE = ("V", "d", "L", "L_enc", "L_dec", "h", "h_enc", "h_dec", "h_kv")  # others may be 0, such as experts
AT_MOST = {"k": "E"}  # experts of a token, of all
MULTIPLES = {"h": "h_kv", "h_lv": "h_lk"}  # heads share keys and values in groups of equal sizes
MAX_DEPTH = 10_000  # layers of a model that is built
IDLE_FIELDS = ("attn_implementation", "_attn_implementation", "return_dict")  # they change no amount, but may fail
MAX_TOKEN_ID = 30  # of special tokens, so that small vocabularies have them
EVEN = [4, 8, 12, 16, 20, 24]
WIDTHS = [24, 32, 40, 48, 56, 64]
HEADS, GROUPS, SMALL_WIDTHS = [4, 8, 12, 16], [1, 2, 4], [8, 16, 24, 32, 40]
LENGTHS, VOCABULARIES = [12, 13, 14, 15, 16, 18], list(range(41, 49))
PROBE_SIZES: ProbeSizes = {
    **dict.fromkeys(("V", "N"), VOCABULARIES),
    **dict.fromkeys(("h", "h_enc", "h_dec", "h_lv", "h_m"), HEADS),
    **dict.fromkeys(("h_kv", "h_lk"), GROUPS),
    **dict.fromkeys(("d_h", "r_q", "r_kv", "d_v", "d_m"), SMALL_WIDTHS),
    "C": [20, 24, 28, 32],
    **dict.fromkeys(("d_ff", "d_ff_enc", "d_ff_dec", "d_e", "d_s", "d_emb"), WIDTHS),
    **dict.fromkeys(("d_rope", "d_nope", "d_lk", "d_lv", "n", "r"), EVEN),
    **dict.fromkeys(DEPTHS, LAYER_COUNTS),
    "I": [12, 24, 36, 48, 60],
    "P": [2, 3, 4, 6],
    "C_in": [1, 2, 3, 4],
    "E": [8, 16, 24, 32],
    "E_s": [1, 2, 3],
    "k": [1, 2, 3],
    "c": [2, 3, 4, 5],
    "w": [3, 4, 5, 6, 7, 8],
    BATCH: [2, 3, 4, 5, 6],
    **dict.fromkeys((TIME, SOURCE), LENGTHS),
}
OFFSETS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40)  # between sizes that heads divide
HEAD_STEPS = (96, 192, 48)  # what a width is a multiple of, so that heads divide it


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what transformers logs about missing kernels and unusual sizes."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def model_types() -> list[str]:
    """Return the model types that transformers knows."""
    from transformers import CONFIG_MAPPING

    return sorted(CONFIG_MAPPING.keys())


def read_hub_config(name: str) -> Config | None:
    """Return the configuration of a model on the hub, from the cache or the network; None if there is no such model."""
    from transformers import PretrainedConfig

    with suppress(OSError):
        return dict(PretrainedConfig.get_config_dict(name)[0]) or None
    return None


@quiet()
def config_subject(config: Mapping[str, Any], settings: Mapping[str, Any], name: str) -> Subject:
    """Return the family of models of a transformers configuration; `settings` are letters or fields with values.

    Raises:
        SpecError: the configuration names code to run, an unknown class, wrong sizes, or no model that can be built.
    """
    import transformers

    fields, lengths = dict(config), dict[str, Any]()
    kind = fields.pop("model_type", None)
    if "auto_map" in fields:
        known = f" Without auto_map, transformers' own {kind} is counted." if kind in model_types() else ""
        raise SpecError(
            f"{name} names Python code of its own to run (auto_map), which is never done here.{known}{FACTORY_HINT}"
        )
    if not isinstance(kind, str) or not kind:
        raise SpecError(
            f"{name} names no model_type, from which transformers knows the class of the model. Add it, as in "
            f'"model_type": "llama".{FACTORY_HINT}'
        )
    if kind not in model_types():
        raise SpecError(describe_unknown(f"{name}: model_type", kind, model_types()) + FACTORY_HINT)
    template = ConfigTemplate(kind, fields, name)
    if (text_fields := template.text_fields()) is not None:
        return config_subject(text_fields, settings, f"{name}, text part")
    changes = dict[str, Any]()
    for key, value in settings.items():
        if key in INPUT_SIZES:
            lengths[key] = value
            continue
        names = (template.fields_by_letter.get(key, key), *FIELDS.get(key, ()))
        field = next((field for field in names if field in template.values), None)
        if field is None and (key in FIELDS or key in LETTERS):  # some classes read sizes that they do not list
            field = FIELDS[key][0] if key in FIELDS else key
        if field is None:
            raise SpecError(describe_unknown(f"{name}: setting", key, [*template.fields_by_letter, *template.values]))
        changes[field] = value
    if changes:
        try:
            fields = template.resize(changes)
        except ValueError as error:
            written = ", ".join(f"{field} = {value}" for field, value in changes.items())
            raise SpecError(f"{name}: {written} cannot be set: {error}.") from None
        template = ConfigTemplate(kind, fields, name)
    template.check_sizes(name)
    make_model = template.find_class(name)
    main_input = getattr(make_model, "main_input_name", "input_ids")
    if main_input not in ("input_ids", "pixel_values"):
        raise SpecError(
            f"{name}: models of the type {kind} read {main_input}, where tokens or pixels are expected.{FACTORY_HINT}"
        )
    is_pair = bool(template.values.get("is_encoder_decoder"))
    input_sizes = {BATCH: 1}
    if main_input == "input_ids":
        default = min(DEFAULT_LENGTH, template.values.get("max_position_embeddings") or DEFAULT_LENGTH)
        input_sizes |= {**({SOURCE: default} if is_pair else {}), TIME: default}
    unused = next((letter for letter in lengths if letter not in input_sizes), None)
    if unused is not None:
        raise SpecError(describe_unknown(f"{name}: setting", unused, [*template.fields_by_letter, *input_sizes]))
    input_sizes |= lengths
    for letter, size in input_sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(f"{letter} = {size!r}: a whole number from 1 up is expected, as in {letter}=8.")
    arguments = inspect.signature(make_model.forward).parameters
    drops_layers = any(name.endswith("layerdrop") for name in template.values)

    def make_module(sizes: Sizes) -> nn.Module:
        with quiet():
            config = template.build({**symbols, **sizes})
            if "SequenceClassification" in make_model.__name__ and config.pad_token_id is None:
                config.pad_token_id = MAX_TOKEN_ID  # without one it reads no batch
            model = make_model(config)
        model.forward = quiet()(model.forward)
        return model.eval() if drops_layers else model  # while training it leaves out layers by chance

    def make_inputs(sizes: Sizes) -> Inputs:
        if main_input == "pixel_values":
            channels = sizes.get("C_in", template.values.get("num_channels", 3))
            side = sizes.get("I", template.values.get("image_size")) or DEFAULT_IMAGE_SIZE
            height, width = side if isinstance(side, (list, tuple)) else (side, side)
            return Inputs((), {main_input: torch.zeros(sizes[BATCH], channels, height, width)})
        tokens = torch.zeros(sizes[BATCH], sizes[SOURCE if is_pair else TIME], dtype=torch.long)
        inputs: dict[str, Any] = {"input_ids": tokens}
        if is_pair:
            inputs["decoder_input_ids"] = torch.zeros(sizes[BATCH], sizes[TIME], dtype=torch.long)
        if "use_cache" in arguments:
            inputs["use_cache"] = template.uses_cache
        return Inputs((), inputs)

    symbols = {letter: template.values[field] for letter, field in template.fields_by_letter.items()}
    subject = Subject(
        name,
        symbols,
        make_module,
        make_inputs,
        input_sizes,
        identity=f"transformers {transformers.__version__} {make_model.__name__} {json.dumps(fields, sort_keys=True)}",
        setting_names=template.fields_by_letter,
        configured_dtype=str(template.values.get("dtype") or "").removeprefix("torch."),
    )
    return template.with_probe_sizes(subject)


class ConfigTemplate:
    """A configuration whose sizes can be changed.

    Attributes:
        fields: the entries that were given; the class has defaults for others.
        values: all entries of the configuration.
        fields_by_letter: the fields that are sizes and follow no others.
    """

    def __init__(self, kind: str, fields: Config, name: str) -> None:
        self.kind, self.fields = kind, {key: value for key, value in fields.items() if key not in IDLE_FIELDS}
        try:
            self.config = self._make(self.fields)
            self.values: Config = self.config.to_dict()
        except Exception as error:  # classes check values in many ways
            raise SpecError(f"{name} is no configuration of the type {kind}: {describe_error(error)}.") from error
        sizes: dict[str, str] = {}
        for field, letter in LETTERS.items():
            value = self.values.get(field)
            if type(value) is int and value > 0 and letter not in sizes:
                sizes[letter] = field
        if "L" in sizes and "L_enc" in sizes:
            del sizes["L"]
        elif "L" in sizes and "L_dec" in sizes and self.values.get("is_encoder_decoder"):
            sizes = {"L_enc" if letter == "L" else letter: field for letter, field in sizes.items()}
        derived = self._derived_fields({*sizes.values()}) - fields.keys()
        self.fields_by_letter = {letter: field for letter, field in sizes.items() if field not in derived}
        for letter in {*DEPTHS} & sizes.keys():
            try:
                self._make(self.resize({sizes[letter]: self.values[sizes[letter]] + 1}))
            except Exception:  # lists of no rule, which have a length of their own
                del self.fields_by_letter[letter]
        self.ties: dict[str, Polynomial] = {}  # sizes that follow others
        self.uses_cache = True

    def _make(self, fields: Mapping[str, Any]) -> Any:
        """Return the configuration with these fields; special tokens are in every vocabulary."""
        from transformers import AutoConfig

        tokens = {
            name: min(value, MAX_TOKEN_ID)
            for name, value in fields.items()
            if name.endswith("_token_id") and type(value) is int
        }
        config = AutoConfig.for_model(self.kind, **{**fields, **tokens})
        for name, value in vars(config).items():
            if name.endswith("_token_id") and type(value) is int:
                setattr(config, name, min(value, MAX_TOKEN_ID))
        return config

    def _derived_fields(self, names: set[str]) -> set[str]:
        """Return the fields that change when others do."""
        derived: set[str] = set()
        for name in names:
            with suppress(Exception):
                changed = self._make({**self.fields, name: 2 * self.values[name]}).to_dict()
                derived |= {other for other in names if other != name and changed.get(other) != self.values[other]}
        return derived

    def build(self, sizes: Sizes) -> Any:
        """Return the configuration at these sizes."""
        sizes = {**sizes, **{letter: int(tie.at(sizes)) for letter, tie in self.ties.items()}}
        return self._make(self.resize({name: sizes[letter] for letter, name in self.fields_by_letter.items()}))

    def resize(self, changes: Mapping[str, Any]) -> Config:
        """Return the fields with changes; lists with an entry per layer get as many entries as there are layers."""
        fields = {**self.fields, **changes}
        for letter in DEPTHS:
            depth = self.fields_by_letter.get(letter, "")
            before, after = self.values.get(depth), changes.get(depth)
            if after is None or after == before:
                continue
            lists = {name: value for name, value in self.values.items() if isinstance(value, list)}
            lists = {name: value for name, value in lists.items() if len(value) == before and value}
            for name in lists.keys() & self.fields.keys():  # the class may write the same list with its own rule
                own = self._make({key: value for key, value in self.fields.items() if key != name}).to_dict()
                if own.get(name) == lists[name]:
                    del fields[name]
                else:
                    fields[name] = extend_list(lists[name], after)
            if "attention_types" in self.values:  # of GPT-Neo: the kinds in turn, and how often
                fields["attention_types"] = [
                    [[kind], 1] for kind in extend_list(self.values["attention_layers"], after)
                ]
            try:
                made = self._make(fields).to_dict()
            except Exception:  # its class checks the lengths of lists in its own way
                made = {}
            for name in lists.keys() - self.fields.keys():
                if len(made.get(name) or ()) != after:
                    fields[name] = extend_list(lists[name], after)
        return fields

    def text_fields(self) -> Config | None:
        """Return the fields of the part for text, of a model that reads images or sound too; None for other models."""
        from transformers import PretrainedConfig

        part = getattr(self.config, "text_config", None)
        if not isinstance(part, PretrainedConfig):
            return None
        dtype = {"dtype": self.values["dtype"]} if self.values.get("dtype") else {}
        return {**dtype, **(self.fields.get("text_config") or {}), "model_type": part.model_type}

    def check_sizes(self, name: str) -> None:
        """Raise a SpecError if sizes are too small, too large, or do not divide each other."""
        sizes: dict[str, tuple[str, int]] = {}
        for field, letter in LETTERS.items():
            if type(value := self.values.get(field)) is int and letter not in sizes:
                sizes[letter] = (field, value)
        for letter in (letter for letter in POSITIVE if letter in sizes):
            field, size = sizes[letter]
            if size < 1:
                raise SpecError(f"{name}: {field} = {size}, where a whole number from 1 up is expected.")
            if letter in DEPTHS and size > MAX_DEPTH:
                raise SpecError(f"{name}: {field} = {size:,}, where at most {MAX_DEPTH:,} layers are expected.")
        for letter, other in AT_MOST.items():
            if {letter, other} <= sizes.keys() and sizes[letter][1] > sizes[other][1] > 0:
                (field, size), (limit, most) = sizes[letter], sizes[other]
                raise SpecError(f"{name}: {field} = {size}, where at most {limit} = {most} is expected.")
        for letter, other in MULTIPLES.items():
            if {letter, other} <= sizes.keys() and sizes[other][1] > 0 and sizes[letter][1] % sizes[other][1]:
                (field, size), (divisor, parts) = sizes[letter], sizes[other]
                raise SpecError(f"{name}: {field} = {size}, where a multiple of {divisor} = {parts} is expected.")

    def find_class(self, name: str) -> type[nn.Module]:
        """Return the class of models that the configuration names, else the language model of its type."""
        import transformers

        named = self.values.get("architectures") or self.fields.get("architectures") or []
        named = named if isinstance(named, list) else [named]
        for architecture in named:
            value = getattr(transformers, architecture, None) if isinstance(architecture, str) else None
            if not (isinstance(value, type) and issubclass(value, transformers.PreTrainedModel)):
                continue
            if value.config_class and not isinstance(self.config, value.config_class):
                kind = getattr(value.config_class, "model_type", "") or value.config_class.__name__
                raise SpecError(
                    f"{name}: architectures names {architecture}, a model of the type {kind}, but model_type is "
                    f"{self.kind}. Correct one of them."
                )
            return value
        if named:
            raise SpecError(
                f"{name}: architectures names {', '.join(map(str, named))}, and transformers has no such model. "
                f"Without architectures, its language model of the type {self.kind} is counted.{FACTORY_HINT}"
            )
        mappings = ["MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"]
        if self.values.get("is_encoder_decoder"):
            mappings.reverse()
        elif self.values.get("is_decoder") is False:  # such as BERT, which reads in both directions unless it is set
            mappings.insert(0, "MODEL_FOR_MASKED_LM_MAPPING")
        others = ("MODEL_FOR_MASKED_LM_MAPPING", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING", "MODEL_MAPPING")
        for mapping in (*mappings, *others):
            with suppress(KeyError):
                classes = getattr(transformers, mapping)[type(self.config)]
                return classes[0] if isinstance(classes, tuple) else classes
        raise SpecError(f"{name}: transformers has no class of models for the type {self.kind!r}.{FACTORY_HINT}")

    def with_probe_sizes(self, subject: Subject) -> Subject:
        """Return the subject with sizes at which it can be probed; sizes that follow others, or change nothing, go."""
        requested, fails = subject.sizes(True), None
        ties_and_steps = product(self._possible_ties(requested), HEAD_STEPS)
        for self.uses_cache, deep, (ties, step) in product((True, False), (False, True), [*ties_and_steps]):
            self.ties = ties
            symbols = {letter: size for letter, size in subject.symbols.items() if letter not in ties}
            sizes = {letter: PROBE_SIZES[letter] for letter in (*symbols, *subject.input_sizes) if letter != "d"}
            if "d" in symbols:
                is_free = not {"d_h", "d_v"}.isdisjoint(symbols)
                sizes["d"] = [(48 if is_free else step) * n for n in range(1, 7)]
            if "w" in sizes and requested["w"] > requested.get(TIME, 0):
                sizes["w"] = [size + 20 for size in sizes["w"]]
            if (groups := self.values.get("n_group") or 1) > 1 and "E" in sizes:
                sizes["E"] = [2 * groups * n for n in range(1, 5)]
            groups = self.values.get("n_groups") or self.values.get("mamba_n_groups") or 1
            for name in ("h", "h_m") if groups > 4 else ():
                if name in sizes:
                    sizes[name] = [groups * n for n in range(1, 5)]
            for heads, width in (("h", "d_h"), ("h_m", "d_m")):
                if heads in ties and "d" in sizes:  # there are as many heads as the width holds
                    sizes |= {width: [4, 8, 16], "d": [16 * max(groups, 3) * n for n in range(1, 7)]}
            if "C" in sizes and requested["C"] < requested.get(TIME, 0):
                sizes["C"] = [4, 5, 6, 7, 8]
            if deep:  # of a model with few layers some parts may be missing
                sizes |= {name: [symbols[name] + more for more in range(4)] for name in DEPTHS if name in symbols}
            tied = replace(subject, symbols=symbols, probe_sizes=sizes, defaults=ties)
            if not all(tied.can_build(at) for at in sample_sizes(sizes, 4)):
                continue
            if fails is None:  # then no other sizes need to be tried
                fails = ModuleReader(subject).fails_as_requested()
            if fails:
                return subject
            reader = ModuleReader(tied)
            sizes |= reader.kinds.depths
            with single_thread():
                lowest = {letter: values[0] for letter, values in sizes.items()}
                most_heads = {letter: max(sizes[letter]) for letter in ("h", "h_kv", "h_m") if letter in sizes}
                corners = [{**lowest, letter: number} for letter, number in most_heads.items()]
                if all(reader.works_at(True, at) for at in (*sample_sizes(sizes, 4), *corners)):
                    return self._without_idle_sizes(replace(tied, probe_sizes=sizes, probes_work=True), reader)
        return self._with_free_sizes(subject)

    def _with_free_sizes(self, subject: Subject) -> Subject:
        """Return the subject with probe sizes of those sizes that can change alone; others stay as requested."""
        self.ties, self.uses_cache = {}, True
        reader, requested = ModuleReader(subject), subject.sizes(True)
        lengths = {name: PROBE_SIZES[name][0] for name in subject.input_sizes}
        sizes = {name: [size] for name, size in requested.items()}
        with single_thread():
            for letter in (name for name in requested if name in PROBE_SIZES and name != "N"):
                values = PROBE_SIZES[letter]
                if all(
                    reader.works_at(True, {**requested, **lengths, letter: value})
                    for value in (*values[:2], values[-1])
                ):
                    sizes[letter] = list(values)
            if not all(reader.works_at(True, at) for at in sample_sizes(sizes, 4)):
                return subject
        return replace(subject, probe_sizes=sizes, probes_work=True)

    def _possible_ties(self, sizes: Sizes) -> Iterator[dict[str, Polynomial]]:
        """Yield sizes that may have to follow others, since they do at the sizes asked for: the likely ones first."""
        first = {"h_kv": symbol("h")} if "h" in sizes and sizes.get("h") == sizes.get("h_kv") else {}
        if sizes.get("d_ssm", 0) == sizes.get("h_m", 0) * sizes.get("d_m", 0) > 0:
            first["d_ssm"] = symbol("h_m") * symbol("d_m")
        yield first
        for h, d_h in (("h", "d_h"), ("h_m", "d_m")):
            ratio, rest = divmod(sizes.get(h, 0) * sizes.get(d_h, 0), sizes.get("d", 1))
            if ratio and not rest:
                yield first | {h: ratio * symbol("d") / symbol(d_h)}
                yield first | {"d": symbol(h) * symbol(d_h) / ratio}

    def _without_idle_sizes(self, subject: Subject, reader: ModuleReader) -> Subject:
        """Return the subject without sizes that change neither shapes nor what a run does."""
        lowest = {letter: values[0] for letter, values in subject.probe_sizes.items()}
        shapes = reader.shapes(lowest)
        idle = set[str]()
        for letter in (name for name in subject.symbols if len(subject.probe_sizes[name]) > 1):
            changed = {**lowest, letter: subject.probe_sizes[letter][1]}
            if letter not in (*DEPTHS, "w", "k", "C", "h", "h_kv", "h_enc", "h_dec"):
                size = subject.symbols[letter]
                with suppress(CountingError):
                    large, larger = (
                        {**lowest, letter: size},
                        {**lowest, letter: 2 * size},
                    )  # small sizes may be rounded
                    if reader.shapes(changed) == shapes and reader.shapes(large) == reader.shapes(larger):
                        idle.add(letter)
        symbols = {letter: size for letter, size in subject.symbols.items() if letter not in idle}
        sizes = {letter: values for letter, values in subject.probe_sizes.items() if letter not in idle}
        smaller = replace(subject, symbols=symbols, probe_sizes=sizes)
        if not ModuleReader(smaller).works_at(True, {letter: values[0] for letter, values in sizes.items()}):
            smaller = subject
        return replace(smaller, domain=self._find_domain(smaller))

    def _find_domain(self, subject: Subject) -> Domain:
        """Return what sizes must be multiples of, where a dimension is rounded: a straight line at multiples only."""
        reader = ModuleReader(subject)
        lowest = {letter: values[0] for letter, values in subject.probe_sizes.items()}
        multiples: dict[str, int] = {}
        for letter in subject.symbols:
            period = gcd(*subject.probe_sizes[letter])
            if letter in DEPTHS or period == 1:
                continue
            first, second, *_ = subject.probe_sizes[letter]
            low, high = reader.shapes(lowest), reader.shapes({**lowest, letter: second})
            bent: list[int] = []
            for offset in (n for n in OFFSETS if n < period):
                with suppress(CountingError):
                    shapes = reader.shapes({**lowest, letter: first + offset})
                    if any(
                        (b - a) * offset != (c - a) * (second - first)
                        for path in low.keys() & high.keys() & shapes.keys()  # each expert may have paths of its own
                        for a, b, c in zip(low[path], high[path], shapes[path], strict=True)
                    ):
                        bent.append(offset)
            if bent:
                steps = (step for step in range(2, period + 1) if period % step == 0)
                multiples[letter] = next(step for step in steps if all(offset % step for offset in bent))
        requested = subject.symbols
        divided = find_divisors(reader, multiples, subject.probe_sizes) if multiples else {}
        multiples = {letter: step for letter, step in multiples.items() if requested[letter] % step == 0}
        explained = {*divided, *divided.values()}
        multiples = {letter: step for letter, step in multiples.items() if letter not in explained}
        return Domain(multiples=multiples, divided=divided)


def extend_list(values: Sequence[Any], length: int) -> list[Any]:
    """Return a list of another length that goes on as this one does: with its period, else with its last value.

    >>> extend_list(["a", "a", "b", "a", "a", "b"], 8), extend_list([1, 2, 2, 2], 6)
    (['a', 'a', 'b', 'a', 'a', 'b', 'a', 'a'], [1, 2, 2, 2, 2, 2])
    """
    for period in range(1, len(values) // 2 + 1):
        if all(value == values[index % period] for index, value in enumerate(values)):
            return [values[index % period] for index in range(length)]
    start = next(index for index in range(len(values)) if len({*map(str, values[index:])}) == 1)
    if start > len(values) // 2:
        raise ValueError("the list has no rule")
    return [values[min(index, len(values) - 1)] for index in range(length)]
