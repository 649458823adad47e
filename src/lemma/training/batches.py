"""Batches on the device."""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from lemma.data.batches import BucketedExamples, ExampleSet, MaskedWindows, RandomWindows, Streams, TokenRows
from lemma.data.graphs import GraphNodes
from lemma.data.images import Captioned
from lemma.data.labels import Labelled
from lemma.data.pairs import TokenPairs
from lemma.data.treebanks import Trees
from lemma.errors import SpecError
from lemma.models.graph import graph_inputs
from lemma.spec.models import Decoder, Encoder, ModelSpec, NewFamily
from lemma.spec.recipe import Recipe
from lemma.training.distributed import Team

# From examples of their own (trees, pairs, labelled texts) to batches on the device, those of like length together.


class ExampleFeed:
    """The batches of a run that learns examples: each a pure function of its step."""

    even = False
    """Whether all batches are of one shape."""

    def __init__(self, examples: ExampleSet, recipe: Recipe, team: Team) -> None:
        self.examples, self.team, self.rows = examples, team, team.share(recipe.batch)
        self.order = BucketedExamples(examples.lengths, recipe.batch, recipe.seed)
        self.stretch = max(1, round(float(examples.lengths.mean())))
        self.counted = 0  # targets of the last batch, all processes' rows together
        self.tokens_a_step = max(1, round(float(examples.lengths.mean()) * recipe.batch))

    def batch(self, step: int) -> tuple[Int[Tensor, "rows ..."], Int[Tensor, "rows ..."]]:
        """Return the examples of a step, and what is to be said of them."""
        inputs, targets = self.examples.batch(self.order.examples(step))
        self.counted = int((self._targets(targets) >= 0).sum())
        return self.team.send(inputs[self.rows]), self.team.send(targets[self.rows])

    def share(self, targets: Int[Tensor, "rows ..."], parts: int) -> Float[Tensor, ""]:
        """How much a part of the batch counts: by its targets, so that the whole batch's mean comes out.

        A team's gradients are averaged, so that each process counts as many times as there are processes.
        """
        return (self._targets(targets) >= 0).sum().double() * (self.team.size / max(1, self.counted))

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: examples have nothing to do with each other."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""

    def _targets(self, targets: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """What of the targets is predicted: a tree's governors, all but the first mark of a translation, a label."""
        match self.examples:
            case Trees():
                return targets[..., 0]
            case TokenPairs():
                return targets[:, 1:]
            case Labelled():
                return targets
        raise TypeError(f"{type(self.examples).__name__} are no examples that training knows.")


# The batches of an encoder that learns plain text: windows of which tokens are hidden, some of them in two halves.


def masked_windows(length: int, spec: Encoder, rate: float, batch: int = 1, seed: int = 0) -> MaskedWindows:
    """The windows that an encoder reads of a text of some length."""
    return MaskedWindows(length, spec.context, batch, seed, rate, spec.objective, spec.vocabulary)


def hidden_places(spec: Encoder, rate: float) -> int:
    """How many tokens of every row are to be predicted."""
    return masked_windows(spec.context, spec, rate).hidden


class MaskedFeed:
    """Windows at random places, each batch a pure function of its step: what is hidden too."""

    even = True
    """Whether all batches are of one shape."""

    def __init__(self, tokens: Int[np.ndarray, "length"], spec: Encoder, recipe: Recipe, team: Team) -> None:
        self.tokens, self.team, self.rows = tokens, team, team.share(recipe.batch)
        self.windows = masked_windows(len(tokens), spec, recipe.mask_rate, recipe.batch, recipe.seed)
        self.stretch, self.tokens_a_step = spec.context, recipe.batch * spec.context

    def batch(self, step: int) -> tuple[Int[Tensor, "rows context"], Int[Tensor, "rows context"]]:
        """Return what the model reads at a step and what it is to say of it: this process's rows of both."""
        inputs, targets = self.windows.batch(self.tokens, step)
        return self.team.send(inputs[self.rows]), self.team.send(targets[self.rows])

    def share(self, targets: Int[Tensor, "rows context"], parts: int) -> float:
        """How much a part of the batch counts: as much as any other, since as many tokens of every row are hidden."""
        return 1 / parts

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: windows have nothing to do with each other."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""


# What is done to the pictures of a step before they are learned: numbers drawn from the seed and the step alone.
#
# A pure function, the same on every machine and in every process of a team. All of it grows with one strength; the
# constants are what it comes to at strength 1.


TURN, SCALE, ASPECT, SHEAR, SHIFT = math.radians(7.5), 0.11, 0.05, 0.075, 0.05
"""Radians, logarithms of factors (two), a slope, and a share of the side; up to so much in either direction."""
BRIGHT, DARKER, CONTRAST, SATURATION, HUE = 0.2, 0.08, 0.4, 0.5, math.radians(27)
"""Shares to either side, what is taken off brightness (white pictures are to show more of it), and radians."""
FILTER, POINTWISE, GREY, BLUR, ERASE = 0.7, 0.3, 0.2, 0.3, 0.25
"""How often a picture is filtered (and how often of these pixel by pixel), loses its colours, its sharpness, a box."""
NARROWEST, WIDER = 0.07, 0.13
"""Half a box's sides, as a share of the picture's: from the first to the sum of both."""
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""From red, green and blue to brightness and two axes of colour, about which hues turn."""
CHANGES_DRAW = 2
"""What tells these draws from others of the same seed and step."""

Shares = Float[np.ndarray, "batch"]


@dataclass(frozen=True)
class Changes:
    """What is done to each picture of a batch, in this order."""

    places: Float[np.ndarray, "batch 2 3"]
    """Where the pixel at (x, y) of the new picture is taken from: an affine map, sides from −1 to 1."""
    brightness: Shares
    contrast: Shares
    """Factors; contrast is about the picture's mean."""
    colours: Float[np.ndarray, "batch 3 3"]
    """The map of colours."""
    filters: Float[np.ndarray, "batch 3 3 3 3"]
    """A filter of three by three pixels from all three channels to each."""
    filtered: Shares
    """How much of the filtered picture is mixed in."""
    grey: Bool[np.ndarray, "batch"]
    """Whether its colours are taken away."""
    blurred: Shares
    """How much of the blurred picture is mixed in."""
    box: Float[np.ndarray, "batch 4"]
    """A rectangle that is painted over: left, top, right, bottom, from 0 to 1."""
    paint: Float[np.ndarray, "batch 3"]
    """The colour that it is painted in."""

    def __getitem__(self, rows: slice) -> "Changes":
        return Changes(*(getattr(self, one.name)[rows] for one in fields(self)))


def changes(seed: int, step: int, batch: int, strength: float) -> Changes:
    """Draw what is done to the pictures of a step."""
    random = np.random.default_rng([seed, step, CHANGES_DRAW])
    return Changes(
        places=_places(random, batch, strength),
        brightness=1 + strength * (BRIGHT * _both(random, batch) - DARKER),
        contrast=1 + strength * CONTRAST * _both(random, batch),
        colours=_colours(random, batch, strength),
        filters=_filters(random, batch),
        filtered=random.uniform(0, 1, batch) * _sometimes(random, batch, FILTER * strength),
        grey=_sometimes(random, batch, GREY * strength),
        blurred=random.uniform(0, 1, batch) * _sometimes(random, batch, BLUR * strength),
        box=_boxes(random, batch, strength),
        paint=random.uniform(0, 1, (batch, 3)),
    )


def _both(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.uniform(-1, 1, shape)


def _sometimes(random: np.random.Generator, batch: int, chance: float) -> Bool[np.ndarray, "batch"]:
    return random.uniform(0, 1, batch) < chance


def _places(random: np.random.Generator, batch: int, strength: float) -> Float[np.ndarray, "batch 2 3"]:
    """Turn, size, aspect, shear and shift in one map."""
    angle, shear = (strength * most * _both(random, batch) for most in (TURN, SHEAR))
    scale, aspect = (np.exp(strength * most * _both(random, batch)) for most in (SCALE, ASPECT))
    shift = 2 * strength * SHIFT * _both(random, 2, batch)  # sides are two long
    cosine, sine = np.cos(angle), np.sin(angle)
    across = np.stack([scale * aspect * cosine, scale * aspect * (shear * cosine - sine), shift[0]], axis=-1)
    down = np.stack([scale / aspect * sine, scale / aspect * (shear * sine + cosine), shift[1]], axis=-1)
    return np.stack([across, down], axis=1)


def _colours(random: np.random.Generator, batch: int, strength: float) -> Float[np.ndarray, "batch 3 3"]:
    """Turn the plane of colours, and stretch it; brightness stays."""
    angle = strength * HUE * _both(random, batch)
    saturation = 1 + strength * SATURATION * _both(random, batch)
    turned = np.zeros((batch, 3, 3))
    turned[:, 0, 0] = 1
    turned[:, 1, 1] = turned[:, 2, 2] = saturation * np.cos(angle)
    turned[:, 2, 1] = saturation * np.sin(angle)
    turned[:, 1, 2] = -turned[:, 2, 1]
    return np.linalg.inv(YIQ) @ turned @ YIQ


def _filters(random: np.random.Generator, batch: int) -> Float[np.ndarray, "batch 3 3 3 3"]:
    """Random filters, which change how surfaces look and leave shapes (Xu et al. 2021); some mix channels only."""
    filters = random.normal(0, math.sqrt(1 / 27), (batch, 3, 3, 3, 3))
    pointwise = _sometimes(random, batch, POINTWISE)
    around = np.ones((3, 3), dtype=bool)
    around[1, 1] = False
    return np.where(pointwise[:, None, None, None, None] & around, 0.0, filters)


def _boxes(random: np.random.Generator, batch: int, strength: float) -> Float[np.ndarray, "batch 4"]:
    centres = random.uniform(0, 1, (batch, 2))
    half = NARROWEST + strength * WIDER * random.uniform(0, 1, (batch, 2))
    half *= _sometimes(random, batch, ERASE * strength)[:, None]
    return np.concatenate([centres - half, centres + half], axis=1)


# Pictures changed a little every time they are learned, whole batches at once and on the device.


FLAT = 1e-3
"""What keeps the spread of a picture of one colour from being divided by."""

Pictures = Float[Tensor, "batch channels side side"]
ImageShares = Float[Tensor, "batch 1 1 1"]


def augment(pictures: UInt8[Tensor, "batch channels side side"], drawn: Changes) -> Pictures:
    """Move, recolour, filter, blur and paint over pictures; what comes in from outside is white. From 0 to 1."""
    device = pictures.device
    changed = _moved(pictures / 255, _on(drawn.places, device))
    changed = _lit(changed, _each(drawn.brightness, device), _each(drawn.contrast, device))
    changed = _mapped(changed, _on(drawn.colours, device))
    changed = _filtered(changed, _on(drawn.filters, device), _each(drawn.filtered, device))
    changed = torch.where(_each(drawn.grey, device) > 0, _grey(changed), changed)
    changed = torch.lerp(changed, _blurred(changed), _each(drawn.blurred, device))
    return _painted(changed, _on(drawn.box, device), _on(drawn.paint, device)).clamp(0, 1)


def _on(numbers: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32)).to(device, non_blocking=True)


def _each(numbers: Float[np.ndarray, "batch"] | Bool[np.ndarray, "batch"], device: torch.device) -> ImageShares:
    return _on(numbers, device)[:, None, None, None]


def _moved(pictures: Pictures, places: Float[Tensor, "batch 2 3"]) -> Pictures:
    """Take every pixel from its place; darkness is moved and not light, so that nothing is white."""
    grid = functional.affine_grid(places, list(pictures.shape), align_corners=False)
    return 1 - functional.grid_sample(1 - pictures, grid, padding_mode="zeros", align_corners=False)


def _lit(pictures: Pictures, brightness: ImageShares, contrast: ImageShares) -> Pictures:
    lit = pictures * brightness
    return torch.lerp(lit.mean((1, 2, 3), keepdim=True), lit, contrast)


def _mapped(pictures: Pictures, colours: Float[Tensor, "batch 3 3"]) -> Pictures:
    return torch.bmm(colours, pictures.flatten(2)).view_as(pictures)


def _grey(pictures: Pictures) -> Pictures:
    weights = _on(YIQ[0], pictures.device)[:, None, None]
    return (pictures * weights).sum(1, keepdim=True)


def _filtered(pictures: Pictures, filters: Float[Tensor, "batch 3 3 3 3"], share: ImageShares) -> Pictures:
    """Mix in the filtered picture, brought to the picture's own mean and spread in each channel."""
    around = functional.unfold(functional.pad(pictures, [1] * 4, mode="replicate"), 3)
    found = torch.bmm(filters.flatten(2), around).view_as(pictures)
    spread, mean = torch.std_mean(found, (2, 3), keepdim=True)
    own_spread, own_mean = torch.std_mean(pictures, (2, 3), keepdim=True)
    return torch.lerp(pictures, (found - mean) / (spread + FLAT) * own_spread + own_mean, share)


def _blurred(pictures: Pictures) -> Pictures:
    """The mean of three by three pixels, twice."""
    return functional.avg_pool2d(functional.avg_pool2d(functional.pad(pictures, [2] * 4, mode="replicate"), 3, 1), 3, 1)


def _painted(pictures: Pictures, box: Float[Tensor, "batch 4"], paint: Float[Tensor, "batch 3"]) -> Pictures:
    centres = (torch.arange(pictures.shape[-1], device=pictures.device) + 0.5) / pictures.shape[-1]
    left, top, right, bottom = (column[:, None] for column in box.unbind(1))
    across, down = (left < centres) & (centres < right), (top < centres) & (centres < bottom)
    inside = (down[:, :, None] & across[:, None, :])[:, None]
    return torch.where(inside, paint[:, :, None, None], pictures)


# Captions worded a little otherwise every time they are learned: a stray token slips in, as in "a red heart".


STRAY = 0.3
"""At strength 1: how often a caption gets a token that is not its own."""
WORDING_DRAW = 3
"""What tells these draws from others of the same seed and step."""

Tokens = Int64[np.ndarray, "batch longest"]


def reworded(tokens: Tokens, strays: Int64[np.ndarray, "strays"], seed: int, step: int, strength: float) -> Tokens:
    """Let one of the strays into captions, where there is room for it: behind their first token, before their last.

    What stands first and last stays there, be it a mark or not. All of it is a function of seed and step.
    """
    if not len(strays):
        return tokens
    random = np.random.default_rng([seed, step, WORDING_DRAW])
    lengths, longest = (tokens >= 0).sum(1), tokens.shape[1]
    wanted = (random.uniform(0, 1, len(tokens)) < STRAY * strength) & (lengths >= 2) & (lengths < longest)
    places = 1 + random.integers(0, np.maximum(1, lengths - 1))
    guests = strays[random.integers(0, len(strays), len(tokens))]
    return _lengthened(tokens, np.where(wanted, places, longest), guests)


def inner_tokens(rows: TokenRows) -> Int64[np.ndarray, "inner"]:
    """All tokens that stand neither first nor last in their row: what may stray into others."""
    inner = np.ones(len(rows.tokens), dtype=bool)
    there = rows.lengths > 0
    inner[rows.bounds[:-1][there]] = inner[rows.bounds[1:][there] - 1] = False
    return rows.tokens[inner].astype(np.int64)


def _lengthened(tokens: Tokens, places: Int64[np.ndarray, "batch"], guests: Int64[np.ndarray, "batch"]) -> Tokens:
    """Put a guest at its place in each row, and move the rest by one; a place past the end is nowhere."""
    column = np.arange(tokens.shape[1])
    behind = column > places[:, None]
    moved = np.take_along_axis(tokens, np.where(behind, column - 1, column), axis=1)
    return np.where(column == places[:, None], guests[:, None], moved)


# From pictures with captions to batches on the device: in a new order every epoch, changed a little every time.


DRAW = 1
"""What tells the choice of captions from other draws of the same seed and step."""
NOTHING = -1


def fitting(recipe: Recipe, tokens: Any, team: Team, tell: Callable[[str], None]) -> Recipe:
    """The recipe with a batch of no more pictures than there are: none is to stand in it twice, and so be too easy."""
    if not isinstance(tokens, Captioned) or recipe.batch <= (pictures := len(tokens.first) - 1):
        return recipe
    batch = pictures // team.size * team.size
    tell(f"batch = {recipe.batch} is more than the {pictures:,} training pictures: batch={batch} is taken.")
    return recipe.replace(batch=batch)


class ImageFeed:
    """The batches of a run that learns pictures: each a pure function of its step, all of one shape."""

    even = True
    """Whether all batches are of one shape: captions are filled up to the longest of all."""

    apart = True
    """Pictures are others at every reading, and a smaller held-out part has a lower loss by its size alone."""

    def __init__(self, examples: Captioned, recipe: Recipe, team: Team) -> None:
        self.examples, self.recipe, self.team = examples, recipe, team
        self.rows, self.longest = team.share(recipe.batch), int(examples.rows.lengths.max())
        self.strays = inner_tokens(examples.rows)
        alike = np.zeros(len(examples.lengths), dtype=np.int64)  # pictures are not sorted by their captions' length
        self.order = BucketedExamples(alike, recipe.batch, recipe.seed)
        self.stretch = max(1, round(float(examples.rows.lengths.mean())))
        self.tokens_a_step = recipe.batch * self.stretch

    def batch(self, step: int) -> tuple[Float[Tensor, "rows channels side side"], Int[Tensor, "rows longest"]]:
        """Return the pictures of a step and a caption of each: this process's rows of both."""
        chosen = self.order.examples(step)
        pixels = np.asarray(self.examples.pixels[chosen[self.rows]])
        return self._changed(self.team.send(pixels), step), self.team.send(self._captions(chosen, step)[self.rows])

    def _captions(self, chosen: Int64[np.ndarray, "batch"], step: int) -> Int64[np.ndarray, "batch longest"]:
        """A caption of each picture; pictures of one caption, or one that stands twice, have the same tokens."""
        recipe = self.recipe
        choice = int(np.random.default_rng([recipe.seed, step, DRAW]).integers(1 << 31))
        tokens = self.examples.captions(chosen, choice)
        tokens = np.pad(tokens, ((0, 0), (0, self.longest - tokens.shape[1])), constant_values=NOTHING)
        if not recipe.augment:
            return tokens
        different, which = np.unique(tokens, axis=0, return_inverse=True)
        return reworded(different, self.strays, recipe.seed, step, recipe.augment)[which.reshape(-1)]

    def share(self, targets: Int[Tensor, "rows longest"], parts: int) -> float:
        """How much a part of the batch counts: all, since every process works out the loss of the whole batch."""
        return 1.0

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: pictures have nothing to do with each other."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""

    def _changed(self, pixels: Tensor, step: int) -> Float[Tensor, "rows channels side side"]:
        recipe = self.recipe
        if not recipe.augment:
            return pixels / 255
        return augment(pixels, changes(recipe.seed, step, recipe.batch, recipe.augment)[self.rows])


# A graph is read as a whole: one batch, the same at every step.


class GraphFeed:
    """The graph on the device, and the nodes whose classes are learned: all of them at every step."""

    even = False
    """Whether compiling is worth it: sparse products are compiled already."""

    apart = True
    """The same few nodes are read at every step, which is as it should be."""

    def __init__(self, model: Any, chosen: GraphNodes, recipe: Recipe, team: Team) -> None:
        if team.size > 1 or recipe.accumulate > 1:
            raise SpecError(
                "a graph is learned as a whole: it is neither shared by several processes nor cut into parts. "
                "Train it in one process, with accumulate=1."
            )
        self.features, self.adjacency = graph_inputs(chosen.graph, model.spec.normalise, team.device)
        self.nodes = torch.from_numpy(chosen.nodes).to(team.device)
        self.classes = torch.from_numpy(chosen.classes).to(team.device)
        self.stretch, self.tokens_a_step = 1, len(chosen)

    def batch(self, step: int) -> tuple[Int[Tensor, "nodes"], Int[Tensor, "nodes"]]:
        """Return the nodes that are learned, and the class of each."""
        return self.nodes, self.classes

    def share(self, targets: Int[Tensor, "nodes"], parts: int) -> float:
        """How much a part of the batch counts: it is the whole."""
        return 1.0

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: there is none."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""


# From the token store to batches on the device.
#
# On a GPU the whole text lies in its memory if it takes less than a quarter of what is free, and batches are cut
# there;
# otherwise a thread cuts the next batch into pinned memory while the GPU works. On a CPU they are cut as needed.


STRETCH = 64
SHARE = 4  # the text may take this part of the GPU's free memory
CHUNK = 1 << 24  # tokens moved to the GPU at once

Order = RandomWindows | Streams


def stretch_of(spec: ModelSpec, recipe: Recipe) -> int:
    """The tokens predicted a sequence: what the recipe says, or a Transformer's context, or 64."""
    if isinstance(spec, NewFamily):
        return recipe.stretch or spec.longest or STRETCH
    return recipe.stretch or (spec.context if isinstance(spec, Decoder | Encoder) else STRETCH)


class Feed:
    """The batches of a run on a CPU: each a pure function of its step, cut from the memory-mapped text."""

    even = True
    """Whether all batches are of one shape."""

    def __init__(self, tokens: Int[np.ndarray, "length"], order: Order, stretch: int, team: Team, batch: int) -> None:
        self.tokens, self.order, self.team = tokens, order, team
        self.rows, self.places = team.share(batch), np.arange(stretch + 1)
        self.stretch, self.tokens_a_step = stretch, batch * stretch

    def batch(self, step: int) -> tuple[Int[Tensor, "rows stretch"], Int[Tensor, "rows stretch"]]:
        """Return what the model reads at a step and what it is to predict: this process's rows of both."""
        joined = self.joined(step)
        return joined[:, :-1], joined[:, 1:]

    def share(self, targets: Int[Tensor, "rows stretch"], parts: int) -> float:
        """How much a part of the batch counts: as much as any other."""
        return 1 / parts

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten before this step, since the streams begin anew."""
        return isinstance(self.order, RandomWindows) or self.order.fresh(step)

    def joined(self, step: int) -> Int[Tensor, "rows stretch+1"]:
        """Return inputs and last target in one."""
        return torch.from_numpy(self.tokens[self.indices(step)].astype(np.int64))

    def indices(self, step: int) -> Int[np.ndarray, "rows stretch+1"]:
        """Return where in the text the tokens of a step lie."""
        return self.order.offsets(step)[self.rows, None] + self.places

    def close(self) -> None:
        """Let go of what was taken."""


class ResidentFeed(Feed):
    """The batches of a run whose whole text lies in the GPU's memory."""

    def __init__(self, tokens: Int[np.ndarray, "length"], order: Order, stretch: int, team: Team, batch: int) -> None:
        super().__init__(tokens, order, stretch, team, batch)
        self.resident = torch.empty(len(tokens), dtype=torch.int32, device=team.device)
        for start in range(0, len(tokens), CHUNK):  # piece by piece, so that the host's memory stays flat
            piece = torch.from_numpy(tokens[start : start + CHUNK].astype(np.int32))
            self.resident[start : start + len(piece)] = piece.to(team.device)
        self.steps = torch.from_numpy(self.places).to(team.device)

    def joined(self, step: int) -> Int[Tensor, "rows stretch+1"]:
        """Cut a batch on the GPU; only the offsets go there."""
        offsets = torch.from_numpy(self.order.offsets(step)[self.rows].astype(np.int64))
        here = offsets.pin_memory().to(self.team.device, non_blocking=True)
        return self.resident[here[:, None] + self.steps].long()


class PrefetchingFeed(Feed):
    """The batches of a run whose text is too large for the GPU: a thread is always one batch ahead."""

    def __init__(self, tokens: Int[np.ndarray, "length"], order: Order, stretch: int, team: Team, batch: int) -> None:
        super().__init__(tokens, order, stretch, team, batch)
        self.worker = ThreadPoolExecutor(1, "feed")
        self.ahead: dict[int, Future[Tensor]] = {}

    def joined(self, step: int) -> Int[Tensor, "rows stretch+1"]:
        """Take the batch that waits, and have the next one cut."""
        waiting = self.ahead.pop(step, None) or self.worker.submit(self._pinned, step)
        self.ahead = {step + 1: self.worker.submit(self._pinned, step + 1)}
        return waiting.result().to(self.team.device, non_blocking=True)

    def _pinned(self, step: int) -> Tensor:
        return super().joined(step).pin_memory()

    def close(self) -> None:
        """End the thread."""
        self.worker.shutdown(cancel_futures=True)


AnyFeed = Feed | MaskedFeed | ExampleFeed | ImageFeed | GraphFeed


def feed_for(
    model: Any, tokens: Int[np.ndarray, "length"] | ExampleSet | Captioned | GraphNodes, recipe: Recipe, team: Team
) -> AnyFeed:
    """Choose the order and the way of a model's batches: examples, windows with hidden tokens, or stretches of text.

    A model whose state is carried from batch to batch reads contiguous streams, others windows at random places.
    """
    if isinstance(tokens, GraphNodes):
        return GraphFeed(model, tokens, recipe, team)
    if isinstance(tokens, Captioned):
        return ImageFeed(tokens, recipe, team)
    if not isinstance(tokens, np.ndarray):
        return ExampleFeed(tokens, recipe, team)
    if isinstance(model.spec, Encoder):
        return MaskedFeed(tokens, model.spec, recipe, team)
    stretch = stretch_of(model.spec, recipe)
    order = (Streams if model.stateful else RandomWindows)(len(tokens), stretch, recipe.batch, recipe.seed)
    return _kind(tokens, team.device)(tokens, order, stretch, team, recipe.batch)


def _kind(tokens: Int[np.ndarray, "length"], device: torch.device) -> type[Feed]:
    if device.type == "cpu":
        return Feed
    free, _ = torch.cuda.mem_get_info(device)
    return ResidentFeed if len(tokens) * 4 < free / SHARE else PrefetchingFeed
