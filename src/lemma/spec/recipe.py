"""How a model is trained."""

from typing import Literal

from pydantic import Field

from lemma.spec.base import Spec
from lemma.spec.objective import CAUSAL, ChosenObjective, Objective


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
