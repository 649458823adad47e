"""Specs of how a model is trained or adapted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_serializer

from lemma.errors import SpecError, describe_unknown
from lemma.spec.base import Letter, Spec, kind_validator
from lemma.spec.plugins import PluginGroup

CAUSAL = "causal"


class NewObjective(Spec):
    """Base class of training objectives that plugins bring: the settings, and where the loss is.

    A subclass has its name as `kind: Literal["focal"] = "focal"`, and a default for each of its settings.
    """

    loss: ClassVar[str] = ""
    """A function, as package.module:name, of logits (batch, time, V), targets (batch, time) and the settings by name;
    it returns the mean over all targets."""

    if TYPE_CHECKING:
        kind: Any

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, without the kind."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}


PLUGIN_OBJECTIVES: PluginGroup[NewObjective] = PluginGroup(
    "lemma.objectives", "objective", NewObjective, "kind", lambda: (CAUSAL,)
)
"""Objectives of plugins."""


class ObjectiveChoice(Spec):
    """The name of an objective, with settings that are validated only when it is used.

    Runs can then be opened, evaluated and generated from where the plugin that they were trained with is not installed.
    """

    model_config = ConfigDict(extra="allow")

    kind: str

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the objective by name, not validated."""
        return dict(self.model_extra or {})

    @model_serializer
    def _serialize(self) -> str | dict[str, Any]:
        """Return the kind alone, or a table of kind and settings."""
        return {"kind": self.kind, **self.settings} if self.settings else self.kind

    def resolve(self) -> NewObjective | None:
        """Return the plugin's objective with validated settings; None for the causal one.

        An objective that is not installed is a SpecError.
        """
        if self.kind == CAUSAL:
            if self.settings:
                names = ", ".join(self.settings)
                raise SpecError(f"recipe.objective: causal has no settings; got {names}. Leave them out.")
            return None
        objective_class = PLUGIN_OBJECTIVES.find(self.kind)
        if objective_class is None:
            message = describe_unknown("recipe.objective", self.kind, [CAUSAL, *PLUGIN_OBJECTIVES.names()])
            raise SpecError(f"{message} If another package brings it, that package is not installed.")
        return objective_class.read({"kind": self.kind, **self.settings}, f"recipe.objective {self.kind}")


Objective = Annotated[
    ObjectiveChoice,
    BeforeValidator(lambda value: value if isinstance(value, (Mapping, ObjectiveChoice)) else {"kind": value}),
]


class AdamWSpec(Spec):
    """AdamW (Loshchilov & Hutter 2019) for all parameters."""

    kind: Literal["adamw"] = "adamw"


class MuonSpec(Spec):
    """Muon (Jordan et al. 2024) for the matrices inside the model; AdamW for embeddings, outputs, norms and biases.

    The momentum of a matrix is made orthogonal, so that every direction of it learns at the same rate.
    """

    kind: Literal["muon"] = "muon"
    learning_rate: float = Field(default=0.02, gt=0)
    """Peak learning rate of the matrices; all other parameters use the recipe's."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the gradients' running mean (Nesterov's momentum)."""


class CustomOptimizer(Spec):
    """A function of yours, given in Python: it takes the model and returns a `torch.optim.Optimizer`."""

    kind: Literal["custom"] = "custom"


def _name_function(value: Any) -> Any:
    """Return "custom" for a function, and any other value unchanged."""
    return "custom" if callable(value) else value


OPTIMIZERS = {"adamw": AdamWSpec, "muon": MuonSpec, "custom": CustomOptimizer}
Optimizer = Annotated[
    AdamWSpec | MuonSpec | CustomOptimizer,
    Field(discriminator="kind"),
    kind_validator("optimizer", OPTIMIZERS, default="adamw"),
    BeforeValidator(_name_function),
]
Schedule = Annotated[Literal["cosine", "linear", "wsd", "constant", "custom"], BeforeValidator(_name_function)]


def _read_tracker(value: Any) -> Any:
    """Convert true to "tensorboard", as in earlier versions, false and "none" to None; leave other values unchanged."""
    trackers = {True: "tensorboard", False: None, "none": None}
    return trackers.get(value, value) if isinstance(value, bool | str) else value


Tracker = Annotated[Literal["tensorboard", "wandb", "mlflow", "trackio"] | None, BeforeValidator(_read_tracker)]


class Recipe(Spec):
    """Settings of training, the same on the command line and in Python."""

    renamed: ClassVar[Mapping[str, str]] = {
        "stretch": "sequence_length",
        "focus": "entropy_penalty",
        "near": "distance_penalty",
        "near_max": "distance_max",
        "tensorboard": "tracker",
    }

    steps: int = Field(default=1000, ge=1)
    """Number of optimizer steps."""
    batch: int = Field(default=32, ge=1)
    """Batch size: sequences per optimizer step, over all devices and micro-batches."""
    sequence_length: int | None = Field(default=None, ge=1)
    """Sequence length in tokens; classifiers cut longer texts. Default: a Transformer's context, or 64."""
    accumulate: int = Field(default=1, ge=1)
    """Gradient accumulation: number of micro-batches per batch, to save memory; the gradient is the same."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak learning rate, reached after the warm-up."""
    final_rate: float = Field(default=0.1, ge=0, le=1)
    """Learning rate at the end of the schedule, as a fraction of the peak."""
    warm_up: int = Field(default=50, ge=0)
    """Number of linear warm-up steps."""
    schedule: Schedule = "cosine"  # Loshchilov & Hutter 2017; wsd: Hu et al. 2024
    """Learning rate schedule: cosine, linear, wsd (linear over the last fifth), constant; in Python also a function."""
    optimizer: Optimizer = AdamWSpec()
    """Optimizer: adamw, or muon for inner matrices and adamw for the rest; in Python also a function of the model."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Weight decay of AdamW (Loshchilov & Hutter 2019) on matrices; not on biases, norms and embeddings."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """AdamW's β₂: decay rate of the mean squared gradient."""
    clip: float = Field(default=1.0, ge=0)
    """Maximum norm of the gradient, for gradient clipping; 0 disables it."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate in training (Srivastava et al. 2014)."""
    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    """Fraction of tokens an encoder predicts: 80 % masked, 10 % replaced, 10 % unchanged (Devlin et al. 2019)."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the target's probability spread over all tokens or classes (Szegedy et al. 2016)."""
    augment: float = Field(default=1.0, ge=0)
    """Strength of the augmentation of images (rotation, colour) and captions (rewording); 0 disables it."""
    objective: Objective = ObjectiveChoice(kind=CAUSAL)
    """Training objective of a language model: causal (next token), or the objective of a plugin."""
    entropy_penalty: float = Field(default=0.0, ge=0)
    """Weight of the entropy penalty on attention, the mean entropy of its rows (problem B2); 0 disables it."""
    distance_penalty: float = Field(default=0.0, ge=0)
    """Weight of the penalty on the mean squared distance of attention, last layer excluded (B3); 0 disables it."""
    distance_max: float = Field(default=100.0, gt=0)
    """Upper bound of a row's squared distance; keeps the penalty from growing with the context."""
    seed: int = Field(default=1, ge=0, le=2**63 - 1)
    """Random seed of the initial weights, batches and dropout."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the validation split. Default: ten evaluations per run."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. Default: at every evaluation."""
    patience: int | None = Field(default=None, ge=1)
    """Early stopping after this many evaluations without improvement. Default: never."""
    keep: Literal["best", "last"] = "best"
    """Weights to keep of a finished run: the best on the validation split, or the last."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on: auto, cpu or cuda; auto uses a GPU if there is one."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """Number of CPU threads. Default: that of torch (OMP_NUM_THREADS, else the number of cores)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the forward pass; auto is bfloat16 on a GPU that supports it, else float32."""
    shard: bool = False
    """Whether to shard weights, gradients and optimizer state over the processes of torchrun (FSDP2 instead of DDP)."""
    recompute: Literal["none", "layers"] = "none"
    """Activation checkpointing: none, or layers, which stores only the inputs of layers and recomputes the rest."""
    compile: Literal["auto", True, False] = "auto"
    """Whether to use torch.compile; auto does on a GPU, for runs that take more than about a minute."""
    tracker: Tracker = None
    """Experiment tracker that logs the metrics too: tensorboard, wandb, mlflow or trackio. Default: none."""


STEPS_PER_WARM_UP_STEP = 10


def fit_warm_up(recipe: Recipe, reference: Recipe | None = None, max_steps: int | None = None) -> Recipe:
    """Shorten a recipe's warm-up to a tenth of its steps, or to the fraction that it takes in `reference` if larger.

    A warm-up that is not longer, or of up to `max_steps` steps if given, stays unchanged.

    >>> fit_warm_up(Recipe(steps=12)).warm_up, fit_warm_up(Recipe(steps=12, warm_up=6), max_steps=12).warm_up
    (1, 6)
    """
    proportional = reference.warm_up * recipe.steps // reference.steps if reference else 0
    fitting = max(recipe.steps // STEPS_PER_WARM_UP_STEP, proportional)
    if recipe.warm_up <= (fitting if max_steps is None else max_steps):
        return recipe
    return recipe.replace(warm_up=min(fitting, recipe.warm_up))


def warm_up_message(recipe: Recipe, requested: int) -> str:
    """Return the message that a warm-up of `requested` steps was shortened to the `warm_up` of the recipe."""
    return f"The warm-up takes {recipe.warm_up} of {recipe.steps:,} steps, not {requested}: set it by warm_up=…"


Patterns = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class Frozen(Spec):
    """The body is frozen; only the head is trained."""

    kind: Literal["frozen"] = "frozen"


class Full(Spec):
    """All weights are trained."""

    kind: Literal["full"] = "full"


class Adapters(Spec):
    """Bottleneck adapters x + W_up σ(W_down x) after modules of a frozen body (Houlsby et al. 2019)."""

    kind: Literal["adapters"] = "adapters"
    bottleneck: Annotated[int, Field(ge=1), Letter("m")] = 16
    """Width of the bottleneck."""
    placement: Patterns = ()
    """Path patterns of the modules that get an adapter, as in *.attention.output. Default: depends on the family
    (attention and feed-forward of each layer, the recurrent layers, the hidden layer)."""


class Lora(Spec):
    """Low-rank updates of frozen matrices: W + (alpha / rank) B A (Hu et al. 2022)."""

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Field(ge=1), Letter("r")] = 8
    """Rank of the update."""
    alpha: Annotated[float, Field(gt=0)] = 16.0
    """Scale of the update, which is multiplied by alpha / rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate of the inputs of A in training."""
    targets: Patterns = ()
    """Path patterns of the matrices, as in *.attention.*. Default: all of the body except the embedding."""


METHODS = {"frozen": Frozen, "full": Full, "adapters": Adapters, "lora": Lora}
Method = Annotated[Frozen | Full | Adapters | Lora, Field(discriminator="kind"), kind_validator("method", METHODS)]


class AdaptationSpec(Spec):
    """Base and method of an adapted run, which stores only what was trained and needs its base."""

    method: Method = Lora()
    """Adaptation method: frozen, full, adapters or lora."""
    base: str
    """Folder of the base run, relative to the adapted run's folder if possible."""
    base_hash: str
    """SHA-256 of the base's weights."""
