"""How a model is trained or adapted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_serializer

from lemma.errors import SpecError, unknown
from lemma.spec.base import Letter, Spec
from lemma.spec.plugins import PluginGroup, by_name

CAUSAL = "causal"


class NewObjective(Spec):
    """An objective that another package brings: its settings, and where the loss is.

    A subclass has its name as `kind: Literal["focal"] = "focal"`, and a default for each of its settings.
    """

    loss: ClassVar[str] = ""
    """A function, as package.module:name, of logits (batch, time, V), targets (batch, time) and the settings by name;
    it returns the mean over all targets."""

    if TYPE_CHECKING:
        kind: Any

    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}


OBJECTIVES: PluginGroup[NewObjective] = PluginGroup(
    "lemma.objectives", "objective", NewObjective, "kind", lambda: (CAUSAL,)
)
"""What other packages bring."""


class ChosenObjective(Spec):
    """An objective by its name, with settings that are read when it is used.

    So a run can be opened, judged and let write where the package that it was trained with is not installed.
    """

    model_config = ConfigDict(extra="allow")

    kind: str

    @property
    def words(self) -> dict[str, Any]:
        """Its settings as they were given."""
        return dict(self.model_extra or {})

    @model_serializer
    def _written(self) -> str | dict[str, Any]:
        return {"kind": self.kind, **self.words} if self.words else self.kind

    def found(self) -> NewObjective | None:
        """The objective with its settings; None is the causal one. One that is not installed is refused."""
        kind = None if self.kind == CAUSAL else OBJECTIVES.find(self.kind)
        if kind is None and self.kind != CAUSAL:
            known = [CAUSAL, *OBJECTIVES.others()]
            more = " If another package brings it, that package is not installed."
            raise SpecError(unknown("recipe.objective", self.kind, known) + more)
        if kind is None and self.words:
            raise SpecError(f"recipe.objective: causal has no settings; got {', '.join(self.words)}. Leave them out.")
        return kind.read({"kind": self.kind, **self.words}, f"recipe.objective {self.kind}") if kind else None


Objective = Annotated[
    ChosenObjective,
    BeforeValidator(lambda value: value if isinstance(value, (Mapping, ChosenObjective)) else {"kind": value}),
]


class Recipe(Spec):
    """How a model is trained: one frozen set of words, the same on the command line and in Python."""

    steps: int = Field(default=1000, ge=1)
    """Number of optimizer steps."""
    batch: int = Field(default=32, ge=1)
    """Sequences a step, over all devices and all parts of the batch."""
    stretch: int | None = Field(default=None, ge=1)
    """Tokens predicted a sequence; a Transformer's context, or 64, if unset."""
    accumulate: int = Field(default=1, ge=1)
    """Parts a batch is cut into, to save memory; the gradient is the same."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """The highest learning rate, reached after the warm-up."""
    final_rate: float = Field(default=0.1, ge=0, le=1)
    """The share of the learning rate left at the end of the cosine."""
    warm_up: int = Field(default=50, ge=0)
    """Steps of linear warm-up."""
    weight_decay: float = Field(default=0.1, ge=0)
    """AdamW's decay of matrices; biases, norms and embeddings are left alone."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """AdamW's memory of squared gradients."""
    clip: float = Field(default=1.0, ge=0)
    """The largest norm of the gradient; 0 switches clipping off."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The share of units dropped while training."""
    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    """The share of tokens that an encoder has to predict: of these 80 % are hidden, 10 % exchanged, 10 % left."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """The share of each target's probability that is spread over all tokens or classes."""
    augment: float = Field(default=1.0, ge=0)
    """How much pictures and captions are changed while learned: turned, recoloured, reworded; 0 changes nothing."""
    objective: Objective = ChosenObjective(kind=CAUSAL)
    """What a language model makes small: causal, or an objective that another package brings."""
    focus: float = Field(default=0.0, ge=0)
    """Weight of the mean entropy of attention's rows in what is minimised (B2); 0 leaves it out."""
    near: float = Field(default=0.0, ge=0)
    """Weight of the mean squared distance attended, all layers but the last (B3); 0 leaves it out."""
    near_max: float = Field(default=100.0, gt=0)
    """Where a row's squared distance is cut off, so that near cannot grow with the context."""
    seed: int = Field(default=1, ge=0)
    """Fixes the first weights, the batches and the dropout."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps between full validation passes; ten passes a run if unset."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; at every validation if unset."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many validations without a better one; never if unset."""
    keep: Literal["best", "last"] = "best"
    """Which weights the finished run holds: the best on validation, or the last."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes the GPU if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """The arithmetic of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."""
    compile: Literal["auto"] | bool = "auto"
    """Whether to compile the model with torch.compile; auto does so on a GPU for 1000 steps or more."""
    tensorboard: bool = False
    """Whether to write TensorBoard events beside metrics.jsonl."""


Patterns = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class Frozen(Spec):
    """The body stays as it is; only the head learns."""

    kind: Literal["frozen"] = "frozen"


class Full(Spec):
    """Every weight learns."""

    kind: Literal["full"] = "full"


class Adapters(Spec):
    """Bottlenecks x + W_up σ(W_down x) behind parts of a frozen body (Houlsby et al. 2019)."""

    kind: Literal["adapters"] = "adapters"
    bottleneck: Annotated[int, Field(ge=1), Letter("m")] = 16
    """Width of the bottleneck."""
    placement: Patterns = ()
    """Patterns of the paths of the modules they stand behind, as in *.attention.output; if unset, the family's own:
    behind attention and feed-forward of each layer, behind the recurrent layers, behind a hidden layer."""


class Lora(Spec):
    """Updates of low rank beside frozen matrices: W + (alpha / rank) B A (Hu et al. 2022)."""

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Field(ge=1), Letter("r")] = 8
    """Rank of the update."""
    alpha: Annotated[float, Field(gt=0)] = 16.0
    """The update is scaled by alpha / rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the inputs dropped on the way to A while training."""
    targets: Patterns = ()
    """Patterns of the paths of the matrices, as in *.attention.*; if unset, all of the body's but the embedding."""


METHODS = {"frozen": Frozen, "full": Full, "adapters": Adapters, "lora": Lora}
Method = Annotated[Frozen | Full | Adapters | Lora, Field(discriminator="kind"), by_name("method", METHODS)]


class AdaptationSpec(Spec):
    """What was adapted, and how: the base that a run needs beside what it changed."""

    method: Method = Lora()
    """frozen, full, adapters or lora."""
    base: str
    """The folder of the base run, seen from the adapted run's own folder where that is possible."""
    base_hash: str
    """The SHA-256 of the base's weights."""
