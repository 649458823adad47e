"""A model joined with its loss, one module per kind of data."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, distributed, nn
from torch.autograd.function import FunctionCtx
from torch.utils.checkpoint import checkpoint

from lemma.data.splits import DataKind, Splits
from lemma.errors import PackageError, SpecError
from lemma.layers.recording import overhear
from lemma.layers.state import State
from lemma.models.base import LanguageModel, evaluating
from lemma.models.classifier import ClassifierModel
from lemma.models.dual_encoder import CrossAttentionModel, DualEncoderModel, Pairs
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.models.graph import GraphModel
from lemma.models.parser import ParserModel
from lemma.models.transformer import EncoderModel
from lemma.spec.models import (
    NEW_FAMILIES,
    Classifier,
    CrossAttention,
    Decoder,
    DualEncoder,
    EncoderDecoder,
    Graph,
    ModelSpec,
    NewFamily,
    Parser,
)
from lemma.spec.recipe import Recipe
from lemma.tasks.losses import (
    Candidates,
    Loss,
    ParsingTargets,
    arcs,
    attention,
    candidates_of,
    causal,
    contrastive,
    cross_entropy,
    equal_rows,
    loss_of,
    next_sentence,
    reranking,
    teacher_forcing,
    translation,
)
from lemma.tasks.penalties import shape_of
from lemma.training.batches import GraphFeed, hidden_places
from lemma.training.distributed import Team

# What is learned and how it is judged: a model with its objective, and the score of a validation.


class Score(Protocol):
    """What a validation comes to."""

    @property
    def loss(self) -> float:
        """Nats a token."""
        ...

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        ...


Evaluate = Callable[[Any], Score]
"""What validates a model, of whatever kind it is."""


Learned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], State | None]
"""What is minimised, the terms that are reported, and the state where training carries it on."""


class Lesson(nn.Module):
    """A model and its objective in one module, so that they can be compiled and shared as one."""

    terms: tuple[str, ...] = ("loss",)
    """The names of what it reports: the causal loss always, and beside it another objective where one was chosen."""

    def __init__(self, model: LanguageModel, objective: Loss = causal) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        if objective is not causal:
            self.terms = (*self.terms, "objective")
        self.chance = (model.spec.vocabulary, "tokens", "V")
        """Among how many, and of what, it guesses before it has learned anything; and their letter."""

    def forward(
        self, inputs: Int[Tensor, "rows stretch"], targets: Int[Tensor, "rows stretch"], state: State | None
    ) -> Learned:
        """Return the objective, to be minimised, the mean loss, and the state where training carries it on."""
        logits, state = self.model(inputs, state)
        objective, terms = self.measured(logits, targets)
        return objective, terms, state if self.model.stateful else None

    def measured(
        self, logits: Float[Tensor, "rows stretch vocabulary"], targets: Int[Tensor, "rows stretch"]
    ) -> tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...]]:
        """What is minimised of logits, and what is reported of them."""
        if self.objective is causal:
            loss = causal(logits, targets)
            return loss, (loss,)
        objective = self.objective(logits, targets)
        return objective, (causal(logits.detach(), targets), objective)


class ShapedLesson(Lesson):
    """A lesson that also shapes attention: L = L_LM + focus · L_focus + near · L_near."""

    def __init__(
        self, model: LanguageModel, focus: float, near: float, near_max: float, objective: Loss = causal
    ) -> None:
        super().__init__(model, objective)
        self.terms = (*self.terms, "focus", "near")
        self.focus, self.near, self.near_max = focus, near, near_max
        self.layers: int = getattr(model.spec, "depth", 1)

    def forward(
        self, inputs: Int[Tensor, "rows stretch"], targets: Int[Tensor, "rows stretch"], state: State | None
    ) -> Learned:
        """Return the loss with its shaping terms; the loss alone and both terms are reported."""
        with overhear() as records:
            logits, state = self.model(inputs, state)
        shape = shape_of(records, self.near_max, self.layers)
        objective, terms = self.measured(logits, targets)
        total = objective + self.focus * shape.focus + self.near * shape.near
        reported = (*terms, shape.focus, shape.near)
        return total.to(objective.dtype), reported, state if self.model.stateful else None


def lesson_for(model: LanguageModel, recipe: Recipe) -> Lesson:
    """The lesson that a recipe asks for; attention can only be shaped where there is some."""
    refuse_broken(model)
    objective = loss_of(recipe.objective)
    if not (recipe.focus or recipe.near):
        return Lesson(model, objective)
    layers = _layers_with_attention(model)
    if not layers:
        word = "focus" if recipe.focus else "near"
        raise SpecError(
            f"recipe.{word} = {getattr(recipe, word)} shapes attention, and a model of the family "
            f"{model.spec.family} has none. Leave the word out, or train a decoder."
        )
    if recipe.near and layers < 2:
        raise SpecError(
            f"recipe.near = {recipe.near} leaves the last layer out, and this model has only one. Try depth=2."
        )
    if recipe.compile is True:
        raise SpecError(
            "recipe.compile = true: shaping listens to attention while it runs, and compiled code is not heard. "
            "Leave compile out."
        )
    if recipe.stretch and model.reach and isinstance(model.spec, Decoder) and recipe.stretch > model.reach:
        raise SpecError(
            f"recipe.stretch = {recipe.stretch} is longer than decoder.context = {model.reach}: attention is shaped "
            "within the context only. Leave stretch out, or raise the context."
        )
    return ShapedLesson(model, recipe.focus, recipe.near, recipe.near_max, objective)


def refuse_broken(model: LanguageModel) -> None:
    """Let a model of another package read two tokens, so that what is wrong with it is said before it is trained."""
    if not isinstance(model.spec, NewFamily):
        return
    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    with NEW_FAMILIES.blaming(model.spec.family, model.spec.model), evaluating(model), torch.no_grad():
        logits, state = model(tokens)
    if logits.shape != (1, 2, model.spec.vocabulary) or not isinstance(state, State):
        raise PackageError(
            f"the family '{model.spec.family}' gives logits of the shape {tuple(logits.shape)} and a "
            f"{type(state).__name__} for one row of two tokens, where (1, 2, {model.spec.vocabulary}) and a "
            "lemma.layers.state.State are expected. lemma.models.contract says more."
        )


def _layers_with_attention(model: LanguageModel) -> int:
    """How many layers attend, seen by letting the model read two tokens."""
    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    with evaluating(model), torch.no_grad(), overhear() as records:
        model(tokens)
    return min(len(records), getattr(model.spec, "depth", 1))


# What encoders, translators and classifiers learn: each a model and its objective in one module.


ExampleLessonsLearned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]
"""What is minimised, the terms that are reported, and no state."""


class MaskedLesson(nn.Module):
    """An encoder that says what was hidden, whether two stretches follow each other, or both (problem E3)."""

    terms: tuple[str, ...]

    def __init__(self, model: EncoderModel, hidden: int) -> None:
        """Take the model, and how many tokens of every row are to be predicted."""
        super().__init__()
        self.model, self.hidden = model, hidden
        self.terms = ("loss", "next_sentence") if model.spec.objective == "both" else ("loss",)

    def forward(
        self, inputs: Int[Tensor, "rows context"], targets: Int[Tensor, "rows context"], state: Any = None
    ) -> ExampleLessonsLearned:
        """Return the mean loss of what was hidden, and that of which stretches follow; their sum is minimised."""
        vectors = self.model.vectors(inputs)
        losses = []
        if self.model.output is not None:
            asked, tokens = self._asked(vectors, targets)
            losses.append(cross_entropy(self.model.output(asked), tokens).loss)
        if self.model.follow is not None:
            losses.append(next_sentence(self.model.follow(vectors[:, 0]), targets).loss)
        return torch.stack(losses).sum(), tuple(losses), None

    def _asked(
        self, vectors: Float[Tensor, "rows context width"], targets: Int[Tensor, "rows context"]
    ) -> tuple[Float[Tensor, "rows hidden width"], Int[Tensor, "rows hidden"]]:
        """The places that are to be predicted, as many in every row: the output layer need read no others."""
        inner = targets[:, 1:]  # the first place says what follows what
        places = (inner >= 0).byte().argsort(dim=1, descending=True, stable=True)[:, : self.hidden]
        picked = (places + 1)[..., None].expand(-1, -1, vectors.shape[-1])
        return vectors.gather(1, picked), inner.gather(1, places)


class TranslationLesson(nn.Module):
    """An encoder–decoder that writes each target token from the source and the target tokens before it."""

    terms = ("loss",)

    def __init__(self, model: EncoderDecoderModel, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(
        self, sources: Int[Tensor, "rows source"], targets: Int[Tensor, "rows target"], state: Any = None
    ) -> ExampleLessonsLearned:
        """Return the smoothed mean loss, to be minimised, and the true one, to be reported."""
        fed, _ = teacher_forcing(targets)
        objective, loss = translation(self.model(sources, fed), targets, self.smoothing)
        return objective, (loss,), None


class ClassificationLesson(nn.Module):
    """A classifier that says which class each text belongs to."""

    terms = ("loss",)

    def __init__(self, model: ClassifierModel, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(
        self, texts: Int[Tensor, "rows time"], classes: Int[Tensor, "rows 1"], state: Any = None
    ) -> ExampleLessonsLearned:
        """Return the smoothed mean loss, to be minimised, and the true one, to be reported."""
        objective, loss = cross_entropy(self.model(texts), classes[:, 0], self.smoothing)
        return objective, (loss,), None


# What a dual encoder learns: each picture's caption among those of the whole batch, and each caption's picture.


ContrastiveLessonLearned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]
"""What is minimised, the terms that are reported, and no state."""


class ContrastiveLesson(nn.Module):
    """A dual encoder and the symmetric contrastive loss; a team's vectors are compared all with all."""

    terms = ("loss", "temperature")

    def __init__(self, model: DualEncoderModel, recipe: Recipe, team: Team) -> None:
        super().__init__()
        refuse_parts(recipe)
        self.model, self.team, self.smoothing = model, team, recipe.label_smoothing
        self.chance = (recipe.batch, "captions", "B")
        """Among how many, and of what, it guesses before it has learned anything; and their letter."""

    def forward(
        self, images: Float[Tensor, "rows channels side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> ContrastiveLessonLearned:
        """Return the smoothed loss of the whole batch, to minimise; the true one and the temperature are reported."""
        model = self.model
        pictures, texts = (
            everyone(vectors.float(), self.team)
            for vectors in (model.image_vectors(images), model.text_vectors(tokens))
        )
        with torch.autocast(images.device.type, enabled=False):  # bfloat16 is too coarse for cosines times a hundred
            logits = model.scale * pictures @ texts.T
        objective, loss = contrastive(logits, equal_rows(self.team.gather(tokens)), self.smoothing)
        return objective, (loss, 1 / model.scale), None


def refuse_parts(recipe: Recipe) -> None:
    """Refuse a batch of one pair, which has nothing to tell apart, and one cut into parts that cannot be compared."""
    if recipe.batch < 2:
        raise SpecError(
            f"recipe.batch = {recipe.batch}: each picture is told from the others of its batch, and one alone has no "
            "others. Give batch=2 or more."
        )
    if recipe.accumulate > 1:
        raise SpecError(
            f"recipe.accumulate = {recipe.accumulate}: the contrastive loss compares every picture with every caption "
            "of the batch, and parts cannot be compared one by one. Leave accumulate out, or lower batch."
        )


def everyone(vectors: Float[Tensor, "rows shared"], team: Team) -> Float[Tensor, "batch shared"]:
    """The vectors of all processes, in the order of ranks, with the way back for their gradients."""
    gathered: Any = Gathered.apply(vectors, team) if team.size > 1 else vectors
    return gathered


class Gathered(torch.autograd.Function):
    """Join a team's rows. Backward every process takes its own rows of the sum of all processes' gradients.

    Every process works out the same loss, so that the sum is as many times too large as there are processes, and the
    mean over the team, which the sharing of gradients takes, is right again.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, vectors: Tensor, team: Team) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Join the rows of all."""
        ctx.team, ctx.own = team, len(vectors)  # pyright: ignore[reportAttributeAccessIssue]
        return team.gather(vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add up what all say, and take the own rows of it."""
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        start = ctx.team.rank * ctx.own
        return total[start : start + ctx.own], None


# What a re-ranker learns: to tell the right one among the few that the dual encoder likes best in a batch.


RerankingLessonLearned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]
"""What is minimised, the terms that are reported, and no state."""
BLOCK = 1 << 25
"""Numbers in the streams of the pairs that are looked at together; of more, blocks are worked out twice."""


class RerankingLesson(nn.Module):
    """Each image picks its text among the dual encoder's k best of the batch, and each text its image.

    Of several processes each finds its candidates among its own rows.
    """

    terms = ("loss",)

    def __init__(self, model: CrossAttentionModel, recipe: Recipe) -> None:
        super().__init__()
        refuse_parts(recipe)
        self.model = model

    def forward(
        self, images: Shaped[Tensor, "rows 3 side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> RerankingLessonLearned:
        """Return the mean loss of both ways; it begins at the dual encoder's own."""
        logits, candidates = self.logits(images, tokens)
        loss = reranking(logits, candidates)
        return loss, (loss,), None

    def logits(
        self, images: Shaped[Tensor, "rows 3 side side"], tokens: Int[Tensor, "rows time"]
    ) -> tuple[Float[Tensor, "rows rows"], Candidates]:
        """The dual encoder's logits of all pairs, with what looking adds to those of the candidates."""
        towers, there = self.model.towers, tokens >= 0
        patches, words = towers.patches(images), towers.words(tokens)
        seen, read = towers.project_image(patches).float(), towers.project_text(words, there).float()
        with torch.autocast(seen.device.type, enabled=False):  # a logit of 100 has no digits left in bfloat16
            dual = towers.scale.float() * seen @ read.T
        candidates = candidates_of(dual, self.model.spec.candidates, equal_rows(tokens))
        pairs = Pairs(*candidates.either.nonzero(as_tuple=True))
        added = looked_at(self.model, patches, words, there, pairs)
        return dual + torch.zeros_like(dual).masked_scatter(candidates.either, added), candidates


def looked_at(
    model: CrossAttentionModel, patches: Tensor, words: Tensor, there: Tensor, pairs: Pairs
) -> Float[Tensor, "pairs"]:
    """What the model adds to the logits of many pairs, in blocks where all at once would take too much memory."""
    at_once = max(1, BLOCK // patches[0].numel())
    if len(pairs.images) <= at_once:
        return model(patches, words, there, pairs).float()
    blocks = zip(*(numbers.split(at_once) for numbers in pairs), strict=True)
    parts = [checkpoint(model, patches, words, there, Pairs(*block), use_reentrant=False) for block in blocks]
    return torch.cat([part.float() for part in parts if part is not None])


# What a graph model learns: the classes of a few nodes, through the whole graph.


GraphLessonLearned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]
"""What is minimised, the terms that are reported, and no state."""


class GraphLesson(nn.Module):
    """A graph model that says which class each of the nodes belongs to."""

    terms = ("loss",)

    def __init__(self, model: GraphModel, feed: GraphFeed, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing
        self.features, self.adjacency = feed.features, feed.adjacency

    def forward(
        self, nodes: Int[Tensor, "chosen"], classes: Int[Tensor, "chosen"], state: Any = None
    ) -> GraphLessonLearned:
        """Return the smoothed mean loss, to be minimised, and the true one, to be reported."""
        logits = self.model(self.features, self.adjacency)[nodes]
        objective, loss = cross_entropy(logits, classes, self.smoothing)
        return objective, (loss,), None


# What a parser learns: the governor and relation of every word, and heads that are pictures of their relations.


SCORES_AT_ONCE = 2**23  # 32 MB in float32, of which backward needs several
Encoded = Float[Tensor, "rows places width"]


class ParsingLesson(nn.Module):
    """A parser and its objective in one module: the arcs' cross-entropy and B1's attention loss."""

    terms: tuple[str, ...] = ("loss", "attention")
    """The names of what it reports."""

    def __init__(self, model: ParserModel) -> None:
        super().__init__()
        self.model = model
        self.weight = model.spec.attention_loss
        self.terms = ("loss", "attention") if self.weight else ("loss",)

    def forward(
        self, rows: Int[Tensor, "rows places columns"], targets: Int[Tensor, "rows words two"], state: None = None
    ) -> tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]:
        """Return what is minimised, the terms that are reported, and no state."""
        loss, picture = self._means(self.model.encode(rows), targets)
        if not self.weight:  # the null place is still touched: a team shares the gradients of all parameters
            return loss + 0.0 * self.model.heads.null.sum(), (loss,), None
        return loss + self.weight * picture, (loss, picture), None

    def _means(self, encoded: Encoded, targets: ParsingTargets) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The mean losses of a batch; where its scores do not fit in memory, part by part and anew for backward."""
        step = max(1, SCORES_AT_ONCE // (self.model.spec.relations * encoded.shape[1] ** 2))
        if step >= len(encoded):
            return self._terms(encoded, targets)
        means, shares = [], []
        for part in zip(encoded.split(step), targets.split(step), strict=True):
            means.append(torch.stack(checkpoint(self._terms, *part, use_reentrant=False)))  # pyright: ignore[reportArgumentType]
            shares.append((part[1] >= 0).sum((0, 1)).flip(0))  # words with a relation, words
        parts, words = torch.stack(means), torch.stack(shares)
        loss, picture = ((parts * words).sum(0) / words.sum(0).clamp(min=1)).unbind()
        return loss, picture

    def _terms(self, encoded: Encoded, targets: ParsingTargets) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        scores = self.model.heads(encoded).float()
        loss = arcs(scores, targets)
        return loss, attention(scores, self.model.heads.null, targets) if self.weight else torch.zeros_like(loss)


# The lesson of a model, of whatever kind it is, and the data that it can be taught.


AnyData = Splits[Any]
AnyLesson = (
    Lesson
    | ParsingLesson
    | MaskedLesson
    | TranslationLesson
    | ClassificationLesson
    | ContrastiveLesson
    | RerankingLesson
    | GraphLesson
)
LEARNS: dict[DataKind, str] = {
    "text": "text",
    "treebank": "a treebank",
    "pairs": "pairs of texts",
    "labels": "labelled texts",
    "images": "images with captions",
    "graph": "a graph",
}


def learns(spec: ModelSpec) -> DataKind:
    """The kind of data that a family learns."""
    match spec:
        case Parser():
            return "treebank"
        case EncoderDecoder():
            return "pairs"
        case Classifier():
            return "labels"
        case DualEncoder() | CrossAttention():
            return "images"
        case Graph():
            return "graph"
        case _:
            return "text"


def refuse_other_kind(spec: ModelSpec, dataset: AnyData) -> None:
    """Refuse data that a model of this family does not learn."""
    wanted = learns(spec)
    if dataset.kind != wanted:
        raise SpecError(f"a model of the family {spec.family} learns {LEARNS[wanted]}, not {LEARNS[dataset.kind]}.")


def lesson_of(model: Any, recipe: Recipe, team: Team | None = None, feed: Any = None) -> AnyLesson:
    """The lesson of a model; a team's is the same unless the whole batch is compared."""
    match model:
        case ParserModel():
            _refuse_shaping(recipe, "a parser's heads are shaped by their relations")
            return ParsingLesson(model)
        case EncoderModel():
            _refuse_shaping(recipe, "an encoder learns what is hidden from it")
            return MaskedLesson(model, hidden_places(model.spec, recipe.mask_rate))
        case EncoderDecoderModel():
            _refuse_shaping(recipe, "an encoder-decoder learns to translate")
            return TranslationLesson(model, recipe.label_smoothing)
        case ClassifierModel():
            _refuse_shaping(recipe, "a classifier learns labels")
            return ClassificationLesson(model, recipe.label_smoothing)
        case DualEncoderModel():
            _refuse_shaping(recipe, "a dual encoder learns images and captions")
            return ContrastiveLesson(model, recipe, team or Team(model.log_scale.device))
        case CrossAttentionModel():
            _refuse_shaping(recipe, "a re-ranker learns images and captions")
            return RerankingLesson(model, recipe)
        case GraphModel():
            _refuse_shaping(recipe, "a graph model has fixed weights in its place")
            return GraphLesson(model, feed, recipe.label_smoothing)
        case _:
            return lesson_for(model, recipe)


def _refuse_shaping(recipe: Recipe, why: str) -> None:
    if recipe.focus or recipe.near:
        raise SpecError(f"recipe.focus and recipe.near shape a language model's attention; {why}. Leave the words out.")
