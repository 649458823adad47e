"""Exercises on the memory of models: weights, KV cache, gradients, optimizer, activations, and what fits."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from lemma.checking.exercises.quantities import (
    ExpectedQuantity,
    Letters,
    QuantityExercise,
    as_float,
    parse_formula,
    pretty,
)
from lemma.checking.exercises.quantity_expressions import Value, evaluate, read_quantity_field
from lemma.errors import InputError, describe_unknown
from lemma.spec.base import Letter, short_repr

MAX_SIZE = 10**9
MAX_TENSORS = 60
PRECISION_BYTES = {"float64": "8", "float32": "4", "float16": "2", "bfloat16": "2", "int8": "1", "int4": "1/2"}
_PRECISION_NAMES = {
    **dict.fromkeys(("fp32", "f32", "tf32", "float", "single", "32bit", "float32", "32"), "float32"),
    **dict.fromkeys(("fp16", "f16", "half", "16bit", "float16", "16"), "float16"),
    **dict.fromkeys(("bf16", "bfloat16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("int8", "fp8", "float8", "8bit", "i8", "8"), "int8"),
    **dict.fromkeys(("int4", "fp4", "4bit", "i4", "nf4", "4"), "int4"),
    **dict.fromkeys(("fp64", "f64", "float64", "double", "64"), "float64"),
}


def read_precision(value: Any) -> Any:
    """Return the name of a precision from one of its spellings, such as fp16; other values unchanged."""
    key = re.sub(r"[\s_-]", "", str(value)).casefold()
    return _PRECISION_NAMES.get(key, value) if value else value


def read_list(value: Any) -> Any:
    """Return the items of a text between commas or semicolons; other values unchanged."""
    if isinstance(value, str):
        return [part.strip() for part in re.split(r"[,;]", value.strip().strip("[]")) if part.strip().strip("\"'")]
    return value


def read_amount(value: Any, info: ValidationInfo) -> Any:
    """Return the number of a field such as "7B" or "2 TB/s"; other values unchanged."""
    try:
        return read_quantity_field(value)
    except InputError:
        example = '"2 TB/s"' if info.field_name in ("bandwidth", "link") else '7B, 124e6, "80 GB" or "40 %"'
        raise ValueError(f"{info.field_name} = {short_repr(value)}: a number is expected, such as {example}.") from None


def read_size(value: Any, info: ValidationInfo) -> Any:
    """Return the whole number that a text such as "4k" states; other values unchanged."""
    if not isinstance(value, str):
        return value
    if match := re.fullmatch(r"\s*(\d{1,6})\s*[kK]\s*", value):
        return 1024 * int(match[1])
    number = read_amount(value, info)
    return int(number) if isinstance(number, float) and number == int(number) else value


Amount = Annotated[float, BeforeValidator(read_amount), Field(ge=0, le=10**30)]
Size = Annotated[int, BeforeValidator(read_size), Field(ge=0, le=MAX_SIZE)]
Precision = Annotated[
    Literal["float64", "float32", "float16", "bfloat16", "int8", "int4"], BeforeValidator(read_precision)
]
OptionalPrecision = Annotated[
    Literal["", "float64", "float32", "float16", "bfloat16", "int8", "int4"], BeforeValidator(read_precision)
]


class MemoryExercise(QuantityExercise):
    """Memory of a model, for inference or training."""

    kind: ClassVar[str] = "memory"
    first_field: ClassVar[str] = "model"

    model: str = ""
    """Model whose sizes are used: a preset, spec, config.json or type of transformers model."""
    parameters: Annotated[Amount, Letter("N")] = 0
    """Number of parameters, such as 7B."""
    layers: Annotated[Size, Letter("L")] = 0
    """Number of layers."""
    heads: Annotated[Size, Letter("h")] = 0
    """Number of query heads."""
    kv_heads: Annotated[Size, Letter("h_kv")] = 0
    """Number of key-value heads. Default: as many as heads."""
    head_dim: Annotated[Size, Letter("d_h")] = 0
    """Width of a head. Default: d/h."""
    width: Annotated[Size, Letter("d")] = 0
    """Width of the model."""
    context: Annotated[Size, Letter("T")] = 0
    """Tokens in a sequence."""
    batch: Annotated[Size, Letter("B")] = 0
    """Sequences in a batch. Default: 1."""
    window: Annotated[Size, Letter("w")] = 0
    """Sliding window: each layer keeps the last w tokens. Default: all tokens."""
    full_layers: Size = 0
    """Number of layers that keep all tokens in spite of the window; m in formulas."""
    latent_rank: Annotated[Size, Letter("r")] = 0
    """Width of the latent vector that is cached in place of keys and values (multi-head latent attention)."""
    rotary_dim: Annotated[Size, Letter("d_r")] = 0
    """Width of the rotary key that is cached next to the latent vector."""
    vocabulary: Annotated[Size, Letter("V")] = 0
    """Size of the vocabulary, for activations such as "B T V"."""
    precision: Precision = "float16"
    """Precision of weights and activations: float32, float16, bfloat16, int8 or int4."""
    cache_precision: OptionalPrecision = ""
    """Precision of the KV cache. Default: as `precision`, with int8 and int4 weights float16."""
    gradient_precision: OptionalPrecision = ""
    """Precision of the gradients. Default: as `precision`."""
    optimizer: Literal["adamw", "adam", "momentum", "sgd"] = "adamw"
    """Optimizer: adamw keeps two moments, momentum one, sgd none."""
    state_precision: Precision = "float32"
    """Precision of the optimizer's moments."""
    master_weights: bool | None = None
    """Whether a float32 copy of the weights is kept. Default: if the precision has 16 bits."""
    activations: Annotated[tuple[str, ...], BeforeValidator(read_list)] = ()
    """Saved tensors of each layer by their shapes, such as "B T d, B h T T"; 3*B T d is three of them."""
    other_activations: Annotated[tuple[str, ...], BeforeValidator(read_list)] = ()
    """Saved tensors outside the layers, such as "B T V"."""
    memory: Annotated[Amount, Letter("M")] = 80e9
    """Memory of the device, such as "80 GB"."""
    phase: Literal["", "inference", "training"] = ""
    """What the total holds: weights and cache, or weights, gradients, optimizer and activations."""

    @model_validator(mode="after")
    def _check_lists(self) -> "MemoryExercise":
        """Check the number of tensors."""
        if len(self.activations) + len(self.other_activations) > MAX_TENSORS:
            raise ValueError(f"activations: at most {MAX_TENSORS} tensors are listed.")
        return self

    def missing_hint(self) -> str:
        """Return a sentence on the fields that are missing."""
        return (
            "Give parameters=7B for weights and training, and layers, heads (or kv_heads), head_dim (or width) and "
            "context for a KV cache."
        )

    def make_letters(self) -> Letters:
        """Return the sizes by their letters, those of the model where the exercise states none."""
        stated: dict[str, Value] = {
            letter: Fraction(str(value))
            for letter, name in type(self).letters().items()
            if isinstance(value := getattr(self, name), (int, float)) and value and letter != "M"
        }
        sizes = {**(model_sizes(self.model, stated) if self.model else {}), **stated}
        if {"h", "d"} <= sizes.keys() and "d_h" not in sizes:
            sizes["d_h"] = Fraction(sizes["d"]) / Fraction(sizes["h"])
        if {"h", "d_h"} <= sizes.keys() and "d" not in sizes:
            sizes["d"] = sizes["d_h"] * sizes["h"]
        if "h_kv" in sizes and "h" not in sizes:
            sizes.setdefault("h", sizes["h_kv"])
        sizes.setdefault("B", Fraction(1))
        if self.full_layers:
            sizes["m"] = Fraction(self.full_layers)
        sizes |= {"M": Fraction(str(self.memory)), "b": Fraction(PRECISION_BYTES[self.precision])}
        cache_bytes = Fraction(PRECISION_BYTES[self.cache_format])
        sizes["b_c"] = cache_bytes
        aliases = {
            "H": "h",
            "n_heads": "h",
            "n_h": "h",
            "n_layers": "L",
            "n_layer": "L",
            "n_kv": "h_kv",
            "n_kv_heads": "h_kv",
            "h_k": "h_kv",
            "H_kv": "h_kv",
            "G": "h_kv",
            "g": "h_kv",
            "S": "T",
            "s": "T",
            "n": "T",
            "seq_len": "T",
            "l": "L",
            "batch": "B",
            "batch_size": "B",
            "d_head": "d_h",
            "head_dim": "d_h",
            "d_k": "d_h",
            "D": "d",
            "d_model": "d",
            "hidden": "d",
            "P": "N",
            "Phi": "N",
            "Psi": "N",
            "params": "N",
            "W": "w",
            "window": "w",
            "d_c": "r",
            "rank": "r",
            "r_kv": "r",
            "d_rope": "d_r",
            "p": "b",
            "vocab": "V",
            "layers": "L",
            "heads": "h",
            "kv_heads": "h_kv",
            "context": "T",
            "width": "d",
            "parameters": "N",
        }
        if "h_kv" not in sizes:
            aliases |= dict.fromkeys(("h_kv", "n_kv", "n_kv_heads", "kv_heads", "H_kv"), "h")
        aliases = {alias: letter for alias, letter in aliases.items() if alias not in sizes}
        relations = []
        if {"h", "d", "d_h"} <= sizes.keys() and sizes["h"] * sizes["d_h"] == sizes["d"]:
            relations.append({"d_h": "d/h", "d": "h*d_h", "h": "d/d_h"})
        return Letters(sizes, aliases, tuple(relations), constants=frozenset({"b", "b_c"}))

    @property
    def cache_format(self) -> str:
        """The precision of the cache."""
        return self.cache_precision or ("float16" if self.precision.startswith("int") else self.precision)

    @property
    def is_training(self) -> bool:
        """True if the total is that of training."""
        return self.phase == "training" or (self.phase == "" and bool(self.activations or self.other_activations))

    def main_names(self) -> tuple[str, ...]:
        """Return the total of training, else the cache, else the weights."""
        names = {each.name for each in self.quantities}
        if "memory" in self.model_fields_set and "largest_batch" in names:
            return ("largest_batch",)
        order = (
            ("total", "model_states")
            if self.is_training
            else ("total",)
            if self.phase
            else ("kv_cache", "weights", "kv_per_token")
        )
        return (next((name for name in order if name in names), self.quantities[-1].name),)

    def expected_quantities(self) -> Sequence[ExpectedQuantity]:
        """Return all quantities that follow from what is given."""
        letters = self.symbols.letters
        quantities: list[ExpectedQuantity] = []
        if "N" in letters:
            quantities += self._parameter_quantities()
        cache = self._cache_formula()
        if cache:
            quantities += self._cache_quantities(*cache)
        activations = self._activation_formula()
        if activations:
            quantities.append(self._activation_quantity(activations))
        by_name = {quantity.name: quantity for quantity in quantities}
        names = ("model_states", "activations") if self.is_training else ("weights", "kv_cache")
        parts = [by_name[name] for name in names if name in by_name]
        if len(parts) == 2:
            quantities += self._total_quantities(*parts)
        return quantities

    def _parameter_quantities(self) -> list[ExpectedQuantity]:
        """Return what depends on the number of parameters alone."""
        size = PRECISION_BYTES[self.precision]
        has_activations = bool(self.activations or self.other_activations)
        gradient = PRECISION_BYTES[self.gradient_precision or self.precision]
        state = PRECISION_BYTES[self.state_precision]
        count = {"adamw": 2, "adam": 2, "momentum": 1, "sgd": 0}[self.optimizer]
        has_master = size == "2" if self.master_weights is None else self.master_weights
        master = 4 if has_master else 0
        precision_mistakes = {
            f"each number is counted with {bytes_} bytes, which is {name}; {self.precision} has {size}": f"N*{bytes_}"
            for name, bytes_ in (("float32", "4"), ("float16", "2"), ("int8", "1"), ("int4", "1/2"))
            if bytes_ != size
        }
        bits = Fraction(size) * 8
        weights, gradients, moments = f"N*{size}", f"N*{gradient}", f"{count}*N*{state}"
        quantities = [
            ExpectedQuantity(
                "weights",
                weights,
                "bytes",
                f"weights in {self.precision}",
                (
                    "parameter memory",
                    "model memory",
                    "parameters memory",
                    "weight memory",
                    "model size",
                    "M_weights",
                    "weights memory",
                    "parameter bytes",
                    "memory of the weights",
                    "inference weights",
                ),
                {
                    f"{bits} bits are counted as {bits} bytes": f"N*{bits}",
                    "the parameters are counted, not their bytes": "N",
                    **precision_mistakes,
                },
            ),
            ExpectedQuantity(
                "gradients",
                gradients,
                "bytes",
                f"gradients in {self.gradient_precision or self.precision}",
                ("gradient memory", "grads", "M_grad"),
                {
                    f"each gradient is counted with {n} bytes, not {gradient}": f"N*{n}"
                    for n in (4, 2)
                    if str(n) != gradient
                },
            ),
        ]
        optimizer = f"({moments})" + (f" + {master}*N" if master else "")
        if count:
            mistakes = {
                f"only one of the {count} moments is counted": f"N*{state}" + (f" + {master}*N" if master else ""),
                "only one moment is counted, and no master weights": f"N*{state}",
                "the moments are counted in 2 bytes each": f"{count}*N*2" + (f" + {master}*N" if master else ""),
                "the weights or gradients are counted too": f"{optimizer} + {weights}",
            }
            if master:
                mistakes |= {
                    "the master weights (float32) are left out": moments,
                    "only the moments in 2 bytes each are counted": f"{count}*N*2",
                }
            quantities += [
                ExpectedQuantity(
                    "moments",
                    moments,
                    "bytes",
                    f"{count} moments in {self.state_precision}",
                    ("adam moments", "optimizer moments", "moment estimates"),
                    {"only one of the two moments is counted": f"N*{state}"} if count == 2 else {},
                ),
                ExpectedQuantity(
                    "optimizer",
                    optimizer,
                    "bytes",
                    "moments and float32 master weights" if master else "moments of the optimizer",
                    ("optimizer states", "optimizer memory", "adamw", "adam states", "optimizer state", "M_opt"),
                    mistakes,
                    conventions={"the moments, without the float32 master weights": moments} if master else {},
                ),
            ]
        parts = [f"N*{size}", f"N*{gradient}", *([f"{count}*N*{state}"] if count else []), *(["N*4"] if master else [])]
        names = [
            "weights are",
            "gradients are",
            *(["moments of the optimizer are"] if count else []),
            "master weights are",
        ]
        total = " + ".join(parts)
        mistakes = {
            f"the {name} left out": " + ".join(parts[:index] + parts[index + 1 :])
            for index, name in enumerate(names[: len(parts)])
            if len(parts) > 1
        }
        if count:
            mistakes["only one moment of the optimizer is counted"] = total.replace(f"{count}*N*{state}", f"N*{state}")
            mistakes["everything is counted with the bytes of the weights"] = f"N*{size}*{2 + count}"
            mistakes["the moments are counted in 2 bytes each"] = total.replace(f"{count}*N*{state}", f"{count}*N*2")
        mistakes["only the weights are counted"] = weights
        mistakes["only weights and gradients are counted"] = f"{weights} + {gradients}"
        if count and master:
            mistakes["moments and master weights are left out"] = f"{weights} + {gradients}"
            mistakes["gradients and master weights are left out"] = f"{weights} + {moments}"
        mistakes["the gradients are counted in 4 bytes"] = (
            total.replace(f"N*{gradient}", "N*4", 2) if gradient != "4" else total
        )
        if gradient != "4":
            mistakes["the gradients are counted in 4 bytes"] = f"{total} + {4 - Fraction(gradient)}*N"
        quantities.append(
            ExpectedQuantity(
                "model_states",
                total,
                "bytes",
                "weights, gradients and optimizer",
                (
                    "training states",
                    "training memory",
                    "states",
                    "training without activations",
                    "M_states",
                    "fixed",
                    "training",
                    "model state memory",
                    *(("total", "total memory", "M_total") if self.is_training and not has_activations else ()),
                ),
                mistakes,
            )
        )
        per_parameter = f"{size} + {gradient}" + (f" + {count}*{state}" if count else "") + (" + 4" if master else "")
        quantities.append(
            ExpectedQuantity(
                "bytes_per_parameter",
                per_parameter,
                "",
                "bytes of training for each parameter",
                ("bytes per param", "per parameter"),
                {"the master weights (float32) are left out": f"{per_parameter} - 4"} if master else {},
                exact=True,
            )
        )
        return quantities

    def _cache_formula(self) -> tuple[str, str] | None:
        """Return the bytes of one token in all layers, and the letter of the tokens; None if too little is given."""
        letters = self.symbols.letters
        b = PRECISION_BYTES[self.cache_format]
        if "L" not in letters:
            return None
        if "r" in letters:
            rotary = " + d_r" if "d_r" in letters else ""
            return f"L*(r{rotary})*{b}", "T"
        heads = "h_kv" if "h_kv" in letters else "h"
        if not {heads, "d_h"} <= letters:
            return ("2*L*d*" + b, "T") if "d" in letters and "h_kv" not in letters else None
        return f"2*L*{heads}*d_h*{b}", "T"

    def _cache_quantities(self, per_token: str, time: str) -> list[ExpectedQuantity]:
        """Return the cache of a token, of a batch, and what it saves."""
        letters, values = self.symbols.letters, self.symbols.values
        size = PRECISION_BYTES[self.cache_format]
        steps: dict[str, str] = {}
        is_latent = "r" in letters
        if is_latent:
            steps["the factor 2 is for keys and values; the latent vector is cached once"] = "2"
            if {"h", "d_h"} <= letters:
                steps["keys and values of all heads are counted, not the latent vector"] = "2*h*d_h/(r" + (
                    " + d_r)" if "d_r" in letters else ")"
                )
            if "d_r" in letters:
                steps["the rotary key is left out"] = "r/(r + d_r)"
        else:
            steps["the factor 2 (keys and values) is left out"] = "1/2"
            if "h_kv" in letters and values["h_kv"] != values["h"]:
                steps["all query heads are counted, not the key-value heads"] = "h/h_kv"
                steps["the heads are left out"] = "1/h_kv"
            elif "h" in letters:
                steps["the heads are left out"] = "1/h"
                steps["the heads are counted twice: d = h*d_h"] = "h"
            if "d" in letters and "h_kv" in letters and values["h_kv"] * values["d_h"] != values["d"]:
                steps["d is taken for the width of one head"] = "d/d_h"
            if "d_h" in letters:
                steps["the width of a head is left out"] = "1/d_h"
        steps["the layers are left out"] = "1/L"
        for bytes_ in ("4", "2", "1"):
            if bytes_ != size:
                steps[f"{bytes_} bytes for each number are counted; {self.cache_format} has {size}"] = (
                    f"{bytes_}/({size})"
                )
        steps["the bytes for each number are left out"] = f"1/({size})"
        steps["bits are counted as bytes"] = "8"
        token = ExpectedQuantity(
            "kv_per_token",
            per_token,
            "bytes",
            "cache of one token in all layers",
            ("cache per token", "kv cache per token", "per token", "bytes per token", "kv bytes per token"),
            steps={text: factor for text, factor in steps.items() if factor != "1/(1)"},
        )
        quantities = [token]
        if "T" in letters:
            formula = f"{per_token}*{time}*B"
            mistakes: dict[str, str] = {}
            if "w" in letters and values["w"] < values["T"]:
                if "m" in letters:
                    formula = f"{per_token}/L*(m*T + (L - m)*min(T, w))*B"
                    mistakes["all layers are counted with the window"] = f"{per_token}*w*B"
                else:
                    formula = f"{per_token}*min(T, w)*B"
                mistakes["the window is ignored: at most w tokens are kept"] = f"{per_token}*T*B"
                mistakes["the window and the context are both counted"] = f"{per_token}*T*w*B"
            more = {
                "the batch is left out": "1/B",
                "the context is left out: that is the cache of one token": "1/T"
                if "w" not in letters
                else "1/min(T, w)",
                "the context is squared; the cache grows linearly with it": "T",
            }
            quantities.append(
                ExpectedQuantity(
                    "kv_cache",
                    formula,
                    "bytes",
                    "cache of a batch of sequences",
                    (
                        "cache",
                        "kv",
                        "kv cache size",
                        "kv memory",
                        "kv-cache",
                        "cache memory",
                        "M_kv",
                        "size of the kv cache",
                        "total kv cache",
                    ),
                    mistakes,
                    {**token.steps, **more},
                )
            )
        if "h_kv" in letters and values["h_kv"] != values["h"]:
            quantities.append(
                ExpectedQuantity(
                    "saving",
                    "h/h_kv",
                    "x",
                    "cache of multi-head attention over that of these key-value heads",
                    ("mha/gqa", "ratio", "factor", "reduction", "mha over gqa"),
                    {"the ratio is inverted": "h_kv/h"},
                )
            )
        elif is_latent and {"h", "d_h"} <= letters:
            latent = "r + d_r" if "d_r" in letters else "r"
            mistakes = {
                "the ratio is inverted": f"({latent})/(2*h*d_h)",
                "the factor 2 (keys and values) is left out": f"h*d_h/({latent})",
            }
            if "d_r" in letters:
                mistakes["the rotary key is left out"] = "2*h*d_h/r"
            quantities.append(
                ExpectedQuantity(
                    "saving",
                    f"2*h*d_h/({latent})",
                    "x",
                    "cache of multi-head attention over the latent one",
                    ("mha/mla", "ratio", "factor", "reduction", "mha over mla"),
                    mistakes,
                )
            )
        return quantities

    def _activation_formula(self) -> str:
        """Return the bytes of the listed activations as a formula; "" if none are listed."""
        size = PRECISION_BYTES[self.precision]
        terms = []
        if self.activations:
            terms.append(f"L*({' + '.join(self._tensor(text) for text in self.activations)})*{size}")
        if self.other_activations:
            terms.append(f"({' + '.join(self._tensor(text) for text in self.other_activations)})*{size}")
        return " + ".join(terms)

    def _tensor(self, text: str) -> str:
        """Return the shape of a tensor as a formula in the letters of the exercise."""
        product_text = re.sub(r"[×,]", " ", text)
        try:
            node = parse_formula(product_text, self.symbols.letters)
        except InputError as error:
            raise InputError(
                f"activations: '{text[:40]}': {error} Write a shape in letters that are given, as in B T d."
            ) from None
        if "L" not in self.symbols.letters and self.activations:
            raise InputError("activations: the number of layers is missing: give layers=12.")
        if evaluate(node, self.symbols.values).value <= 0:
            raise InputError(f"activations: '{text[:40]}' has no numbers.")
        return re.sub(r"(?<=[\w)])\s+(?=[\w(])", "*", product_text.strip())

    def _activation_quantity(self, formula: str) -> ExpectedQuantity:
        """Return the bytes of the listed activations with the mistakes in them."""
        size = PRECISION_BYTES[self.precision]
        mistakes: dict[str, str] = {}
        layers = [self._tensor(text) for text in self.activations]
        other = (
            f" + ({' + '.join(self._tensor(text) for text in self.other_activations)})*{size}"
            if self.other_activations
            else ""
        )
        if layers:
            mistakes["the layers are left out"] = f"({' + '.join(layers)})*{size}" + other
            for index, tensor in enumerate(layers):
                if len(layers) > 1:
                    remaining_sum = " + ".join(layers[:index] + layers[index + 1 :])
                    mistakes[f"the tensor {self.activations[index]} is left out"] = (
                        f"L*({remaining_sum})*{size}" + other
                    )
                if re.search(r"T\s*\*?\s*T|T\s*\^\s*2", tensor):
                    linear = re.sub(r"T\s*\*?\s*T|T\s*\^\s*2", "T", tensor, count=1)
                    changed = " + ".join([*layers[:index], linear, *layers[index + 1 :]])
                    mistakes["T is counted once in the attention scores: they have T² entries"] = (
                        f"L*({changed})*{size}" + other
                    )
                if re.search(r"(?<![\w])h(?![\w])", tensor):
                    fewer = re.sub(r"(?<![\w])h(?![\w])", "1", tensor)
                    changed = " + ".join([*layers[:index], fewer, *layers[index + 1 :]])
                    mistakes["the heads are left out"] = f"L*({changed})*{size}" + other
            if other:
                mistakes["the tensors outside the layers are left out"] = f"L*({' + '.join(layers)})*{size}"
        steps = {"the batch is left out": "1/B", "bits are counted as bytes": "8"}
        for bytes_ in ("4", "2"):
            if bytes_ != size:
                steps[f"{bytes_} bytes for each number are counted; {self.precision} has {size}"] = f"{bytes_}/({size})"
        if size != "1":
            steps["the bytes for each number are left out"] = f"1/({size})"
        return ExpectedQuantity(
            "activations",
            formula,
            "bytes",
            "saved tensors of the exercise's list",
            ("activation memory", "activation", "M_act"),
            mistakes,
            steps,
        )

    def _total_quantities(self, fixed: ExpectedQuantity, growing: ExpectedQuantity) -> list[ExpectedQuantity]:
        """Return the total, and the largest batch and context that fit."""
        total = f"({fixed.formula}) + ({growing.formula})"
        mistakes = {f"the {fixed.meaning or fixed.name} are left out": growing.formula}
        mistakes[f"the {growing.meaning or growing.name} are left out"] = fixed.formula
        for text, formula in fixed.mistakes.items():
            mistakes[text] = f"({formula}) + ({growing.formula})"
        for text, formula in growing.mistakes.items():
            mistakes[text] = f"({fixed.formula}) + ({formula})"
        for text, factor in growing.steps.items():
            mistakes[text] = f"({fixed.formula}) + ({growing.formula})*({factor})"
        mistakes["the batch multiplies the weights too: they are there once"] = (
            f"(({fixed.formula}) + ({growing.formula})/B)*B"
        )
        quantities = [
            ExpectedQuantity(
                "per_sequence",
                f"({growing.formula})/B",
                "bytes",
                "what one sequence of the batch adds",
                ("per sample", "per batch element", "a"),
            ),
            ExpectedQuantity(
                "total",
                total,
                "bytes",
                f"{fixed.name} and {growing.name}, a·B + b in the batch",
                ("total memory", "memory total", "a*B + b", "sum", "M_total", "peak memory"),
                mistakes,
            ),
        ]
        each, values = f"(({growing.formula})/B)", self.symbols.values
        free = f"(M - ({fixed.formula}))"
        letters = self.symbols
        if letters.evaluator(free)(values) <= 0:
            return quantities
        gib = Fraction(2**30, 10**9)
        is_decimal = values["M"] % 2**20 != 0
        batch = f"floor({free}/{each})"
        mistakes = {
            "rounded up: that batch does not fit": f"ceil({free}/{each})",
            f"the {fixed.meaning or fixed.name} are ignored": f"floor(M/{each})",
            "rounded to the nearest number, not down": f"round({free}/{each})",
            "GB are taken for GiB": f"floor((M*{gib} - ({fixed.formula}))/{each})" if is_decimal else batch,
            "GiB are taken for GB": batch if is_decimal else f"floor((M/{gib} - ({fixed.formula}))/{each})",
            "a batch less than what fits": f"{batch} - 1",
        }
        for text, factor in growing.steps.items():
            if "batch" not in text:
                mistakes[text] = f"floor({free}/({each}*({factor})))"
        for text, formula in growing.mistakes.items():
            mistakes[text] = f"floor({free}/(({formula})/B))"
        for text, formula in fixed.mistakes.items():
            mistakes[text] = f"floor((M - ({formula}))/{each})"
        quantities.append(
            ExpectedQuantity(
                "largest_batch",
                batch,
                "",
                "largest batch that fits into the memory M",
                (
                    "max batch",
                    "maximum batch",
                    "B_max",
                    "B",
                    "batch",
                    "largest B",
                    "maximal batch size",
                    "max batch size",
                    "largest batch size",
                    "maximum batch size",
                ),
                mistakes,
                exact=True,
            )
        )
        if "T" in letters.letters:
            quantities.append(self._largest_context(fixed, growing))
        return quantities

    def _largest_context(self, fixed: ExpectedQuantity, growing: ExpectedQuantity) -> ExpectedQuantity:
        """Return the longest context that fits, by bisection on the total."""
        letters = self.symbols

        def largest(fixed_formula: str, growing_formula: str, memory: Value) -> int:
            total = letters.evaluator(f"({fixed_formula}) + ({growing_formula})")

            def fits(context: int) -> bool:
                return as_float(total({**letters.values, "T": Fraction(context)})) <= as_float(memory)

            high = 1
            while fits(high) and high < 10**12:
                high *= 2
            low = high // 2
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle) else (low, middle)
            return low

        memory = letters.values["M"]
        right = largest(fixed.formula, growing.formula, memory)
        mistakes = {
            "rounded up: that context does not fit": str(right + 1),
            f"the {fixed.meaning or fixed.name} are ignored": str(largest("0", growing.formula, memory)),
        }
        if letters.values["B"] != 1:
            mistakes["the batch is ignored"] = str(largest(fixed.formula, f"({growing.formula})/B", memory))
        for text, factor in growing.steps.items():
            if not text.startswith(("the context", "the batch")):
                mistakes[text] = str(largest(fixed.formula, f"({growing.formula})*({factor})", memory))
        if right >= 10**11:
            mistakes = {}
        return ExpectedQuantity(
            "largest_context",
            "largest T with total ≤ M",
            "",
            "longest context that fits into the memory M",
            ("max context", "T_max", "T", "maximum context", "longest context", "max context length", "largest T"),
            mistakes,
            exact=True,
            function=lambda point: Fraction(right),
            work=f"{pretty(fixed.formula)} + {pretty(growing.formula)} ≤ M at T = {right:,}, not at {right + 1:,}",
        )


def model_sizes(model: str, stated: Mapping[str, Value]) -> dict[str, Value]:
    """Return the sizes of a model by letter; its parameters are those of the module itself, without memory.

    Sizes that the exercise states, and the model has, are set before it is built.
    """
    from lemma.counting.subject import resolve_subject

    subject = resolve_subject(model)
    model_letters = {*subject.sizes(True), *subject.setting_names}
    settings = {letter: int(value) for letter, value in stated.items() if letter in model_letters and letter != "N"}
    if "d_h" in settings and subject.spec is not None:  # Lemma's d_h is the width of all heads together
        settings["d_h"] *= int(settings.get("h") or subject.sizes(True).get("h", 1))
    if settings:
        subject = resolve_subject(model, settings)
    sizes: dict[str, Value] = {letter: Fraction(size) for letter, size in subject.sizes(True).items()}
    module = subject.build(subject.sizes(True))
    sizes["N"] = Fraction(sum(parameter.numel() for parameter in module.parameters()))
    spec = subject.spec
    if spec is not None and "d_h" in sizes and "h" in sizes:
        sizes["d_h"] = sizes["d_h"] / sizes["h"]
    renamed = {"r_kv": "r", "d_rope": "d_r"}
    supported_letters = {"N", "L", "h", "h_kv", "d_h", "d", "T", "B", "w", "r", "d_r", "V"}
    sizes = {renamed.get(letter, letter): size for letter, size in sizes.items()}
    if "L" not in sizes and not spec:
        raise InputError(describe_unknown("size", "L", sizes))
    return {letter: size for letter, size in sizes.items() if letter in supported_letters and size}
