"""Exercises on scaling and time: compute, training time and cost, scaling laws, rooflines, communication, MFU."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lemma.checking.exercises.memory import PRECISION_BYTES, Amount, Precision, Size
from lemma.checking.exercises.quantities import ExpectedQuantity, Letters, QuantityExercise
from lemma.checking.exercises.quantity_expressions import Value
from lemma.spec.base import Letter

Constant = Annotated[float, Field(ge=0, le=10**9)]


class ScalingExercise(QuantityExercise):
    """Compute, time, scaling laws, rooflines and communication: everything that follows from what is given."""

    kind: ClassVar[str] = "scaling"

    parameters: Annotated[Amount, Letter("N")] = 0
    """Number of parameters, such as 7B."""
    tokens: Annotated[Amount, Letter("D")] = 0
    """Number of training tokens, such as 1.4T."""
    compute: Annotated[Amount, Letter("C")] = 0
    """Budget of training in FLOPs, such as 1e22."""
    flops: Annotated[Amount, Letter("P")] = 0
    """Peak FLOPs per second of one device, such as "312 TFLOPs"."""
    gpus: Annotated[Size, Letter("G")] = 0
    """Number of devices. Default: 1."""
    mfu: Annotated[Amount, Letter("U")] = 0
    """Model FLOPs utilization, such as 0.4 or "40 %". Default: 1."""
    throughput: Annotated[Amount, Letter("R")] = 0
    """Measured tokens per second of all devices."""
    price: Amount = 0
    """Price of one device for an hour, in dollars; c in formulas."""
    tokens_per_parameter: Annotated[float, Field(gt=0, le=10**6), Letter("k")] = 20.0
    """Compute-optimal tokens per parameter (Hoffmann et al. 2022)."""
    law: Literal["ratio", "parametric"] = "ratio"
    """Law of the optimum: a fixed ratio of tokens to parameters, or the least of L = E + A/N^alpha + B/D^beta."""
    loss_e: Annotated[Constant, Letter("E")] = 1.69
    """Irreducible loss E of the scaling law."""
    loss_a: Annotated[Constant, Letter("A")] = 406.4
    """Constant A of the scaling law."""
    loss_b: Annotated[Constant, Letter("B")] = 410.7
    """Constant B of the scaling law."""
    alpha: Annotated[float, Field(gt=0, le=10)] = 0.34
    """Exponent of N in the scaling law."""
    beta: Annotated[float, Field(gt=0, le=10)] = 0.28
    """Exponent of D in the scaling law."""
    bandwidth: Annotated[Amount, Letter("W")] = 0
    """Memory bandwidth in bytes per second, such as "2 TB/s"."""
    precision: Precision = "float16"
    """Precision of numbers that are read or sent: float32, float16, bfloat16, int8 or int4."""
    batch: Size = 0
    """Sequences that are decoded at once; B in formulas. Default: 1."""
    cache: Annotated[Amount, Letter("K")] = 0
    """Bytes of the KV cache of one sequence that a decoding step reads."""
    rows: Annotated[Size, Letter("m")] = 0
    """Rows m of a product of an m×k and a k×n matrix."""
    inner: Size = 0
    """Inner size k of the product."""
    columns: Annotated[Size, Letter("n")] = 0
    """Columns n of the product: 1 for a matrix times a vector."""
    work: Annotated[Amount, Letter("F")] = 0
    """FLOPs of a kernel, for its arithmetic intensity."""
    traffic: Annotated[Amount, Letter("Q")] = 0
    """Bytes that a kernel moves."""
    kernel_intensity: Amount = 0
    """Arithmetic intensity in FLOPs per byte, if it is given; I in formulas."""
    message: Annotated[Amount, Letter("S")] = 0
    """Bytes of an all-reduce, such as "14 GB"."""
    link: Annotated[Amount, Letter("v")] = 0
    """Bytes per second that a device sends, such as "300 GB/s"."""
    stages: Annotated[Size, Letter("p")] = 0
    """Stages of a pipeline."""
    micro_batches: Size = 0
    """Micro-batches of a step of the pipeline; m in formulas."""

    def missing_hint(self) -> str:
        """Return a sentence on the fields that are missing."""
        return (
            "Give parameters and tokens; compute; flops and bandwidth with rows, inner, columns or work, traffic; "
            "parameters and bandwidth; message and gpus; or stages and micro_batches."
        )

    def make_letters(self) -> Letters:
        """Return what is given, by letters."""
        values: dict[str, Value] = {
            letter: Fraction(str(value))
            for letter, name in type(self).letters().items()
            if (value := getattr(self, name)) and letter not in "kEAB"
        }
        values["b"] = Fraction(PRECISION_BYTES[self.precision])
        optional_values = {"c": self.price, "I": self.kernel_intensity}
        values |= {letter: Fraction(str(value)) for letter, value in optional_values.items() if value}
        if self.inner:
            values["k"] = Fraction(self.inner)
        else:
            values["k"] = Fraction(str(self.tokens_per_parameter))
        if self.micro_batches:
            values["m"] = Fraction(self.micro_batches)
        needs_law = not self.stages and not self.batch and (("N" in values and "D" in values) or "C" in values)
        if needs_law:
            law = {"E": self.loss_e, "A": self.loss_a, "B": self.loss_b, "alpha": self.alpha, "beta": self.beta}
            values |= {letter: Fraction(str(value)) for letter, value in law.items()}
        elif "W" in values:
            values["B"] = Fraction(self.batch or 1)
        if self.message or self.link or self.flops:
            values.setdefault("G", Fraction(1))
        if "N" in values and not self.message and self.link:
            values["S"] = values["N"] * values["b"]
        aliases = {
            "params": "N",
            "parameters": "N",
            "tokens": "D",
            "MFU": "U",
            "mfu": "U",
            "eta": "U",
            "GPUs": "G",
            "gpus": "G",
            "n_gpus": "G",
            "peak": "P",
            "BW": "W",
            "bw": "W",
            "bandwidth": "W",
            "M": "S" if self.message else "m",
            "K": "k",
            "pi": "P",
            "F": "P",
            "price": "c",
            "size": "S",
            "message": "S",
            "link": "v",
            "l": "m",
        }
        if self.stages:
            aliases |= {"K": "p"}
        if "N" not in values:
            aliases |= {"N": "n" if "n" in values else "G"}
        if self.message and not self.stages:
            aliases |= {"n": "G", "p": "G", "K": "G", "B": "v" if "W" not in values else "B"}
        return Letters(values, {alias: letter for alias, letter in aliases.items() if alias not in values})

    def main_names(self) -> tuple[str, ...]:
        """Return what is asked with these fields if the exercise does not say."""
        names = {each.name for each in self.quantities}
        if {"N_opt", "D_opt"} <= names:
            return ("N_opt", "D_opt")
        law = {"law", "loss_e", "loss_a", "loss_b", "alpha", "beta"}
        order = (
            "mfu_measured",
            "cost",
            "training_time",
            "bubble",
            "allreduce_time",
            "allreduce_bytes",
            "time_per_token",
            "intensity_of_kernel",
            "attainable",
            *(("C",) if {"loss", "C"} <= names and not law & self.model_fields_set else ()),
            "loss",
            "D_opt",
            "N_opt",
            "C",
            "ridge",
            "intensity_of_kernel",
        )
        return (next((name for name in order if name in names), self.quantities[-1].name),)

    def expected_quantities(self) -> Sequence[ExpectedQuantity]:
        """Return everything that follows from what is given."""
        letters = self.symbols.letters
        return [
            *self._compute_quantities(letters),
            *self._law_quantities(letters),
            *self._roofline_quantities(letters),
            *self._decoding_quantities(letters),
            *self._communication_quantities(letters),
        ]

    def _compute_quantities(self, letters: frozenset[str]) -> list[ExpectedQuantity]:
        """Return the compute of training, its time, its cost and its utilization."""
        quantities: list[ExpectedQuantity] = []
        compute, six = "", {}
        if {"N", "D"} <= letters:
            compute = "6*N*D"
            six = {
                "2 FLOPs for each parameter and token are the forward pass alone; training takes 6": "1/3",
                "4 FLOPs for each parameter and token are the backward pass alone; training takes 6": "2/3",
                "3 FLOPs for each parameter and token: a multiply-add is 2 FLOPs": "1/2",
                "8 FLOPs for each parameter and token are those with recomputed activations; 6 without": "4/3",
                "the factor 6 (FLOPs for each parameter and token) is left out": "1/6",
            }
            quantities = [
                ExpectedQuantity(
                    "forward",
                    "2*N*D",
                    "FLOPs",
                    "forward passes over all tokens",
                    ("forward flops",),
                    steps={"6 FLOPs are those of forward and backward": "3", "a multiply-add is 2 FLOPs": "1/2"},
                ),
                ExpectedQuantity(
                    "backward",
                    "4*N*D",
                    "FLOPs",
                    "backward passes over all tokens",
                    ("backward flops",),
                    steps={
                        "6 FLOPs are those of forward and backward": "3/2",
                        "2 FLOPs are those of the forward pass": "1/2",
                    },
                ),
                ExpectedQuantity(
                    "C",
                    compute,
                    "FLOPs",
                    "training compute, 6 FLOPs for each parameter and token",
                    ("compute", "training compute", "flops", "training flops", "total flops", "total compute"),
                    steps=six,
                ),
                ExpectedQuantity(
                    "tokens_per_param",
                    "D/N",
                    "",
                    "tokens for each parameter",
                    ("D/N", "tokens per parameter"),
                    {"the ratio is inverted": "N/D"},
                ),
            ]
        elif "C" in letters:
            compute = "C"
        elif "N" in letters and "D" not in letters:
            quantities = [
                ExpectedQuantity(
                    "flops_per_token",
                    "6*N",
                    "FLOPs",
                    "forward and backward pass for one token",
                    ("training flops per token",),
                    {
                        "2 FLOPs for each parameter are the forward pass alone": "2*N",
                        "4 FLOPs for each parameter are the backward pass alone": "4*N",
                    },
                ),
                ExpectedQuantity(
                    "forward_per_token",
                    "2*N",
                    "FLOPs",
                    "forward pass for one token",
                    ("inference flops per token",),
                    {
                        "6 FLOPs for each parameter are forward and backward pass": "6*N",
                        "a multiply-add is 2 FLOPs": "N",
                    },
                ),
            ]
        usage = "*U" if "U" in letters else ""
        rate = f"(G*P{usage})"
        steps = {"the number of devices is left out": "G", "the time is multiplied by the devices, not divided": "G^2"}
        if usage:
            steps |= {"the MFU is left out": "U", "multiplied by the MFU, not divided": "U^2"}
        if compute and "P" in letters and not {"R", "D"} <= letters:
            quantities.append(
                ExpectedQuantity(
                    "training_time",
                    f"{compute}/{rate}",
                    "s",
                    "time of training",
                    (
                        "time",
                        "t",
                        "T",
                        "training duration",
                        "duration",
                        "days",
                        "hours",
                        "wall time",
                        "wall-clock time",
                    ),
                    steps={**six, **steps},
                )
            )
            mfu_step = {text: factor for text, factor in steps.items() if "MFU" in text}
            quantities.append(
                ExpectedQuantity(
                    "gpu_hours",
                    f"{compute}/(P{usage})",
                    "hours",
                    "time times devices",
                    ("gpu time", "gpu-hours", "gpu days", "gpu-days", "device hours", "total gpu hours"),
                    steps={**six, **mfu_step, "divided by the number of devices": "1/G"},
                )
            )
            if "c" in letters:
                quantities.append(
                    ExpectedQuantity(
                        "cost",
                        f"{compute}/(P{usage})/3600*c",
                        "$",
                        "device hours times price",
                        ("price total", "costs", "total cost"),
                        steps={
                            **six,
                            **mfu_step,
                            "the number of devices is left out": "1/G",
                            "the price of an hour is multiplied by seconds": "3600",
                            "the price of an hour is multiplied by days": "1/24",
                        },
                    )
                )
        if {"N", "P"} <= letters and not (self.rows or self.bandwidth):
            two = {
                "2 FLOPs for each parameter are the forward pass alone; training takes 6": "3",
                "the number of devices is left out": "1/G",
            }
            if usage:
                two |= {"the MFU is left out": "1/U", "divided by the MFU, not multiplied": "1/U^2"}
            quantities.append(
                ExpectedQuantity(
                    "tokens_per_second",
                    f"{rate}/(6*N)",
                    "tokens/s",
                    "tokens that are trained in a second",
                    ("tokens/s", "training throughput"),
                    {},
                    two,
                )
            )
        if {"N", "P", "R"} <= letters:
            quantities.append(
                ExpectedQuantity(
                    "mfu_measured",
                    "6*N*R/(G*P)",
                    "%",
                    "FLOPs of the model over those of the devices",
                    ("mfu", "utilization", "model flops utilization", "hfu"),
                    {"the ratio is inverted": "G*P/(6*N*R)"},
                    {
                        "2 FLOPs for each parameter are the forward pass alone; training takes 6": "1/3",
                        "4 FLOPs for each parameter are the backward pass alone; training takes 6": "2/3",
                        "the number of devices is left out": "G",
                        "the factor 6 is left out": "1/6",
                    },
                )
            )
        if {"R", "D"} <= letters:
            if self.gpus:
                quantities.append(
                    ExpectedQuantity(
                        "gpu_hours",
                        "G*D/R",
                        "hours",
                        "time times devices",
                        ("gpu time", "gpu-hours", "gpu days", "gpu-days", "device hours", "total gpu hours"),
                        steps={"divided by the number of devices": "1/G"},
                    )
                )
            quantities.append(
                ExpectedQuantity(
                    "training_time",
                    "D/R",
                    "s",
                    "tokens over tokens per second",
                    ("time", "t"),
                    {"the ratio is inverted": "R/D"},
                )
            )
        return quantities

    def _law_quantities(self, letters: frozenset[str]) -> list[ExpectedQuantity]:
        """Return the loss and the optimum of scaling laws."""
        quantities: list[ExpectedQuantity] = []
        if {"N", "D", "alpha"} <= letters:
            quantities.append(
                ExpectedQuantity(
                    "loss",
                    "E + A/N^alpha + B/D^beta",
                    "",
                    "loss of the scaling law",
                    ("L", "L(N,D)", "predicted loss"),
                    {
                        "E is left out": "A/N^alpha + B/D^beta",
                        "the exponents are exchanged": "E + A/N^beta + B/D^alpha",
                        "A and B are exchanged": "E + B/N^alpha + A/D^beta",
                        "N and D are exchanged": "E + A/D^alpha + B/N^beta",
                        "the term of the data is left out": "E + A/N^alpha",
                        "the term of the parameters is left out": "E + B/D^beta",
                        "multiplied by the powers, not divided": "E + A*N^alpha + B*D^beta",
                    },
                )
            )
        if "C" in letters and not {"N", "D"} & letters:
            quantities += self._budget_quantities()
        elif "N" in letters and not {"D", "C", "P", "W", "v"} & letters:
            quantities += [
                ExpectedQuantity(
                    "D_opt",
                    "k*N",
                    "tokens",
                    "compute-optimal tokens",
                    ("D", "tokens", "optimal tokens"),
                    {"parameters per token: the ratio is inverted": "N/k"},
                ),
                ExpectedQuantity(
                    "C",
                    "6*N*(k*N)",
                    "FLOPs",
                    "compute of the optimum",
                    ("compute", "flops"),
                    {
                        "2 FLOPs for each parameter and token are the forward pass alone": "2*N*(k*N)",
                        "the ratio is inverted": "6*N*N/k",
                    },
                ),
            ]
        elif "D" in letters and not {"N", "C", "P", "W", "v", "R"} & letters:
            quantities += [
                ExpectedQuantity(
                    "N_opt",
                    "D/k",
                    "parameters",
                    "compute-optimal parameters",
                    ("N", "parameters"),
                    {"tokens per parameter: the ratio is inverted": "D*k"},
                ),
                ExpectedQuantity(
                    "C",
                    "6*(D/k)*D",
                    "FLOPs",
                    "compute of the optimum",
                    ("compute", "flops"),
                    {"2 FLOPs for each parameter and token are the forward pass alone": "2*(D/k)*D"},
                ),
            ]
        elif {"C", "N"} <= letters and "D" not in letters:
            quantities.append(
                ExpectedQuantity(
                    "D_trained",
                    "C/(6*N)",
                    "tokens",
                    "tokens that the budget allows",
                    ("D", "tokens"),
                    {
                        "2 FLOPs for each parameter and token are the forward pass alone; training takes 6": "C/(2*N)",
                        "the factor 6 is left out": "C/N",
                    },
                )
            )
        elif {"C", "D"} <= letters and "N" not in letters:
            quantities.append(
                ExpectedQuantity(
                    "N_trained",
                    "C/(6*D)",
                    "parameters",
                    "parameters that the budget allows",
                    ("N", "parameters"),
                    {
                        "2 FLOPs for each parameter and token are the forward pass alone; training takes 6": "C/(2*D)",
                        "the factor 6 is left out": "C/D",
                    },
                )
            )
        return quantities

    def _budget_quantities(self) -> list[ExpectedQuantity]:
        """Return the optimum for a budget, by the law of the exercise."""
        if self.law == "ratio":
            return [
                ExpectedQuantity(
                    "N_opt",
                    "sqrt(C/(6*k))",
                    "parameters",
                    "compute-optimal parameters: C = 6·N·(k·N)",
                    ("N", "parameters", "optimal parameters", "N*"),
                    {
                        "the root is forgotten": "C/(6*k)",
                        "2 FLOPs for each parameter and token, not 6": "sqrt(C/(2*k))",
                        "the ratio is inverted: k parameters per token": "sqrt(C*k/6)",
                        "the ratio k is left out": "sqrt(C/6)",
                        "the factor 6 is left out": "sqrt(C/k)",
                    },
                ),
                ExpectedQuantity(
                    "D_opt",
                    "sqrt(k*C/6)",
                    "tokens",
                    "compute-optimal tokens: k·N",
                    ("D", "tokens", "optimal tokens", "D*"),
                    {
                        "the root is forgotten": "k*C/6",
                        "2 FLOPs for each parameter and token, not 6": "sqrt(k*C/2)",
                        "the ratio is inverted: k parameters per token": "sqrt(C/(6*k))",
                        "the ratio k is left out": "sqrt(C/6)",
                        "the factor 6 is left out": "sqrt(k*C)",
                    },
                ),
            ]
        power = "(C/6)^(beta/(alpha + beta))"
        g = "(alpha*A/(beta*B))^(1/(alpha + beta))"
        n, d = f"{g}*(C/6)^(beta/(alpha + beta))", f"(C/6)^(alpha/(alpha + beta))/{g}"
        wrong_g = "(beta*B/(alpha*A))^(1/(alpha + beta))"
        return [
            ExpectedQuantity(
                "N_opt",
                n,
                "parameters",
                "parameters of the least loss: ∂L/∂N = 0 along C = 6·N·D",
                ("N", "parameters", "optimal parameters", "N*"),
                {
                    "the exponents of N and D are exchanged": f"{g}*(C/6)^(alpha/(alpha + beta))",
                    "the constant is inverted": f"{wrong_g}*(C/6)^(beta/(alpha + beta))",
                    "the factor 6 is left out": f"{g}*C^(beta/(alpha + beta))",
                    "the constant is left out": "(C/6)^(beta/(alpha + beta))",
                    "the root of the constant is forgotten": "alpha*A/(beta*B)*(C/6)^(beta/(alpha + beta))",
                    "alpha and beta are left out of the constant": f"(A/B)^(1/(alpha + beta))*{power}",
                },
            ),
            ExpectedQuantity(
                "D_opt",
                d,
                "tokens",
                "tokens of the least loss",
                ("D", "tokens", "optimal tokens", "D*"),
                {
                    "the exponents of N and D are exchanged": f"(C/6)^(beta/(alpha + beta))/{g}",
                    "the constant is inverted": f"(C/6)^(alpha/(alpha + beta))*{g}",
                    "the factor 6 is left out": f"C^(alpha/(alpha + beta))/{g}",
                },
            ),
            ExpectedQuantity(
                "loss",
                "E + A/N_opt^alpha + B/D_opt^beta",
                "",
                "loss at the optimum",
                ("L", "optimal loss", "L*", "minimal loss"),
                {"E is left out": f"A/({n})^alpha + B/({d})^beta"},
                function=self.symbols.evaluator(f"E + A/({n})^alpha + B/({d})^beta"),
            ),
        ]

    def _roofline_quantities(self, letters: frozenset[str]) -> list[ExpectedQuantity]:
        """Return arithmetic intensity, ridge point, and what bounds a kernel."""
        quantities: list[ExpectedQuantity] = []
        intensity, values = "", self.symbols.values
        has_roof = {"P", "W"} <= letters
        if has_roof:
            quantities.append(
                ExpectedQuantity(
                    "ridge",
                    "P/W",
                    "FLOP/byte",
                    "intensity at which both limits meet",
                    ("ridge point", "machine balance", "critical intensity", "balance"),
                    {
                        "the ratio is inverted: bandwidth over FLOPs": "W/P",
                        "FLOPs per number, not per byte": "P/W*b",
                        "bits are taken for bytes": "P/(W/8)",
                    },
                )
            )
        work, traffic = "", ""
        if self.rows and self.inner and self.columns:
            work, traffic = "2*m*k*n", "b*(m*k + k*n + m*n)"
            quantities += [
                ExpectedQuantity(
                    "matmul_flops",
                    work,
                    "FLOPs",
                    "2 FLOPs for each multiply-add",
                    ("flops", "operations", "work", "FLOP"),
                    {"a multiply-add is 2 FLOPs": "m*k*n", "the sizes are added": "2*(m*k + k*n)"},
                ),
                ExpectedQuantity(
                    "matmul_bytes",
                    traffic,
                    "bytes",
                    "both inputs read once, the output written once",
                    ("bytes", "memory traffic", "bytes moved", "data"),
                    {
                        "the output is left out": "b*(m*k + k*n)",
                        "the first matrix is left out": "b*(k*n + m*n)",
                        "the second matrix is left out": "b*(m*k + m*n)",
                        "numbers are counted, not bytes": "m*k + k*n + m*n",
                        "4 bytes for each number are counted": "4*(m*k + k*n + m*n)",
                        "every product reads its numbers again": "b*2*m*k*n",
                    },
                ),
            ]
        elif {"F", "Q"} <= letters and self.work and self.traffic:
            work, traffic = "F", "Q"
        if work:
            intensity = f"{work}/({traffic})"
            mistakes = {"the ratio is inverted: bytes over FLOPs": f"{traffic}/({work})"}
            if self.rows:
                mistakes |= {
                    "a multiply-add is 2 FLOPs": "m*k*n/(b*(m*k + k*n + m*n))",
                    "the output is left out of the bytes": "2*m*k*n/(b*(m*k + k*n))",
                    "numbers are counted, not bytes": "2*m*k*n/(m*k + k*n + m*n)",
                    "4 bytes for each number are counted": "2*m*k*n/(4*(m*k + k*n + m*n))",
                }
            quantities.append(
                ExpectedQuantity(
                    "intensity_of_kernel",
                    intensity,
                    "FLOP/byte",
                    "FLOPs over bytes",
                    (
                        "arithmetic intensity",
                        "operational intensity",
                        "intensity",
                        "AI",
                        "I",
                        "intensity of the kernel",
                    ),
                    mistakes,
                )
            )
        elif "I" in letters:
            intensity = "I"
        if intensity and has_roof:
            difference = self.symbols.evaluator(f"{intensity} - P/W")(values)
            quantities.append(_bound_quantity(difference > 0, f"{intensity} {'>' if difference > 0 else '<'} P/W"))
            other = "P" if difference <= 0 else f"{intensity}*W"
            quantities.append(
                ExpectedQuantity(
                    "attainable",
                    f"min(P, {intensity}*W)",
                    "FLOP/s",
                    "what the roofline allows",
                    ("attainable flops", "performance", "roofline", "attainable performance", "attainable flop/s"),
                    {
                        "the other limit of the roofline": other,
                        "divided by the intensity, not multiplied": f"W/({intensity})",
                    },
                )
            )
            if work:
                quantities.append(
                    ExpectedQuantity(
                        "kernel_time",
                        f"max({work}/P, {traffic}/W)",
                        "s",
                        "the longer of both times",
                        ("runtime", "kernel runtime", "time of the kernel", "matmul time"),
                        {
                            "the shorter of both times": f"min({work}/P, {traffic}/W)",
                            "both times are added": f"{work}/P + {traffic}/W",
                        },
                    )
                )
        return quantities

    def _decoding_quantities(self, letters: frozenset[str]) -> list[ExpectedQuantity]:
        """Return the time of a decoding step, which reads all weights."""
        if not {"N", "W"} <= letters or "D" in letters:
            return []
        read = "N*b" + (" + B*K" if "K" in letters else "")
        mistakes = {
            "the parameters are counted, not their bytes": "N/W",
            "4 bytes for each parameter are counted": "N*4/W",
            "bits are counted as bytes": f"({read})*8/W",
            "the ratio is inverted: that is tokens per second": f"W/({read})",
        }
        if "P" in letters:
            mistakes |= {
                "that is the time of computing, 2N/P; reading the weights takes longer": "2*N/P",
                "bytes are divided by FLOPs per second": f"({read})/P",
            }
        if "K" in letters:
            mistakes["the KV cache is left out"] = "N*b/W"
        quantities = [
            ExpectedQuantity(
                "time_per_token",
                f"({read})/W",
                "s",
                "time to read the weights once" + (" and the cache" if "K" in letters else ""),
                ("latency", "time per step", "tpot", "time", "t", "decode time", "latency per token"),
                mistakes,
            ),
            ExpectedQuantity(
                "tokens_per_second",
                f"B*W/({read})",
                "tokens/s",
                "tokens decoded in a second",
                ("tokens/s", "throughput limit", "speed", "decode throughput", "max throughput"),
                {
                    "the batch is left out": f"W/({read})",
                    "the parameters are counted, not their bytes": "B*W/N",
                    "the ratio is inverted: that is the time of a token": f"({read})/W",
                    "4 bytes for each parameter are counted": "B*W/(N*4)",
                },
            ),
        ]
        if "P" in letters:
            quantities.append(
                ExpectedQuantity(
                    "compute_time",
                    "2*N*B/P",
                    "s",
                    "time of computing one step",
                    ("time to compute", "compute time per token"),
                    {
                        "6 FLOPs for each parameter are those of training": "6*N*B/P",
                        "a multiply-add is 2 FLOPs": "N*B/P",
                    },
                )
            )
            compute_bound = self.symbols.evaluator(f"2*N*B/P - ({read})/W")(self.symbols.values) > 0
            quantities.append(_bound_quantity(compute_bound, f"2·N·B/P {'>' if compute_bound else '<'} ({read})/W"))
            if "K" not in letters:
                quantities.append(
                    ExpectedQuantity(
                        "critical_batch",
                        "b*P/(2*W)",
                        "",
                        "batch at which both times are equal",
                        ("balanced batch", "batch size at the ridge", "break-even batch", "B*"),
                        {
                            "the 2 FLOPs of a multiply-add are left out": "b*P/W",
                            "the bytes for each parameter are left out": "P/(2*W)",
                        },
                    )
                )
        return quantities

    def _communication_quantities(self, letters: frozenset[str]) -> list[ExpectedQuantity]:
        """Return bytes and time of a ring all-reduce, and the bubble of a pipeline."""
        quantities: list[ExpectedQuantity] = []
        if {"S", "G"} <= letters and self.gpus:
            sent = "2*(G - 1)/G*S"
            mistakes = {
                "the factor 2 is left out: reduce-scatter and all-gather both send (G−1)/G": "(G - 1)/G*S",
                "(G−1)/G is left out": "2*S",
                "2(G−1)/G is left out": "S",
                "not divided by the number of devices: each step sends a part of 1/G": "2*(G - 1)*S",
                "sent to each other device in full": "(G - 1)*S",
                "(G+1)/G, not (G−1)/G": "2*(G + 1)/G*S",
                "2/G, not 2(G−1)/G": "2*S/G",
                "G/(G−1): the ratio is inverted": "2*G/(G - 1)*S" if self.gpus > 1 else "2*S",
            }
            quantities.append(
                ExpectedQuantity(
                    "allreduce_bytes",
                    sent,
                    "bytes",
                    "bytes that each device sends in a ring all-reduce",
                    ("bytes sent", "bytes", "all-reduce bytes", "communication volume", "volume", "traffic per device"),
                    mistakes,
                )
            )
            if "v" in letters:
                timed = {text: f"({formula})/v" for text, formula in mistakes.items()}
                timed |= {
                    "bits per second are taken for bytes": f"{sent}/(v/8)",
                    "multiplied by the speed": f"{sent}*v",
                }
                quantities.append(
                    ExpectedQuantity(
                        "allreduce_time",
                        f"{sent}/v",
                        "s",
                        "time of a ring all-reduce",
                        ("all-reduce time", "communication time", "time", "t", "comm time"),
                        timed,
                    )
                )
        if self.stages and self.micro_batches:
            quantities += [
                ExpectedQuantity(
                    "bubble",
                    "(p - 1)/(m + p - 1)",
                    "%",
                    "fraction of the time that a stage waits",
                    ("bubble fraction", "pipeline bubble", "idle fraction", "idle time"),
                    conventions={"the bubble over the ideal time, (p−1)/m": "(p - 1)/m"},
                    mistakes={
                        "that is the bubble over the ideal time, (p−1)/m": "(p - 1)/m",
                        "1 is not subtracted from the stages above": "p/(m + p - 1)",
                        "1 is not subtracted in the denominator": "(p - 1)/(m + p)",
                        "1 is not subtracted at all": "p/(m + p)",
                        "that is the busy fraction, 1 − bubble": "m/(m + p - 1)",
                        "micro-batches and stages are exchanged": "(m - 1)/(m + p - 1)",
                        "the bubble is (p−1)/(m + p − 1), not 1/m": "1/m",
                    },
                ),
                ExpectedQuantity(
                    "bubble_overhead",
                    "(p - 1)/m",
                    "%",
                    "bubble over the ideal time",
                    ("overhead", "bubble over ideal time"),
                    {},
                ),
                ExpectedQuantity(
                    "pipeline_efficiency",
                    "m/(m + p - 1)",
                    "%",
                    "busy fraction of the time",
                    ("efficiency", "busy fraction", "utilization of the pipeline"),
                    {"that is the bubble": "(p - 1)/(m + p - 1)", "1 is not subtracted": "m/(m + p)"},
                ),
            ]
        return quantities


def _bound_quantity(is_compute_bound: bool, formula: str) -> ExpectedQuantity:
    """Return the word on what bounds a kernel."""
    compute = ("compute-bound", "compute bound", "compute limited", "flops bound", "arithmetic bound", "compute")
    memory = (
        "memory-bound",
        "memory bound",
        "bandwidth bound",
        "memory limited",
        "bandwidth limited",
        "memory",
        "bandwidth",
    )
    right, wrong = (compute, memory) if is_compute_bound else (memory, compute)
    mistake = "the intensity is compared the other way round"
    mistakes = {mistake + " " * index: word for index, word in enumerate(wrong)}
    return ExpectedQuantity(
        "bound",
        formula,
        "",
        "compute-bound or memory-bound",
        ("limit", "limited by", "regime", "bottleneck"),
        mistakes,
        words=right,
    )
