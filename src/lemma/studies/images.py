"""Pictures made ready for a dual encoder, and how well it finds what belongs together among them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemma.data import PICTURES, Captioned, ImagesData, prepare_images, read_images
from lemma.errors import DataError, SpecError
from lemma.evaluation import (
    NearestPixel,
    Products,
    RetrievalScore,
    belonging_of,
    loss_of_batches,
    owners_of,
    score_retrieval,
)
from lemma.models import DualEncoderModel, embed_images, embed_texts
from lemma.runs import Run
from lemma.spec import DualEncoder, ImagesSpec, Transformer, longest
from lemma.studies.asking import Asked, rooted
from lemma.training import Observer, watched_reading

PIXELS = "nearest pixel"
SAMPLES = 3


@dataclass(frozen=True)
class ImagesLesson:
    """Of a dual encoder: how well it finds pictures and captions that were held out."""

    dataset: ImagesData
    batch: int

    def evaluate(self, model: DualEncoderModel) -> RetrievalScore:
        """Search the validation pictures; intervals and baselines are for the end."""
        return retrieved(model, self.dataset.tokens("validation"), self.batch, samples=0)

    def sample(self, model: DualEncoderModel) -> list[str]:
        """The caption that is found for each of the first few pictures held out."""
        examples, pictures = self.dataset.tokens("validation"), self.dataset.pictures("validation")
        captions = [caption for picture in pictures for caption in picture.captions]
        vectors = embed_images(model, examples.pixels[:SAMPLES])
        found = (vectors @ embed_texts(model, examples.rows).T).argmax(1)
        return [f"{picture.name} → {captions[best]}" for picture, best in zip(pictures, found, strict=False)]


def reading_of(spec: DualEncoder) -> dict[str, Any]:
    """How this dual encoder reads pictures and captions: the size, the length, and whether between marks."""
    if spec.body.family == "tree":
        raise SpecError(
            "dual-encoder.body = 'tree' reads sentences with their trees, and captions have none. Take body=lstm."
        )
    return {"side": spec.side, "length": longest(spec.body), "marked": isinstance(spec.body, Transformer)}


def prepared_images(data: ImagesSpec, spec: DualEncoder, tokenizer: Any, watcher: Observer) -> ImagesData:
    """Pictures with captions as this dual encoder reads them."""
    return prepare_images(data, **reading_of(spec), tokenizer=tokenizer, progress=watched_reading(watcher))


def retrieved(
    model: DualEncoderModel,
    examples: Captioned,
    batch: int,
    *,
    learned: Captioned | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> RetrievalScore:
    """Let a dual encoder find captions by pictures and pictures by captions, beside the nearest `learned` picture."""
    images, texts = embed_images(model, examples.pixels), embed_texts(model, examples.rows)
    belonging, first = belonging_of(examples), examples.first[:-1]
    pixels = None if learned is None else by_pixels(examples, learned)
    return score_retrieval(
        Products(images, texts),
        belonging,
        loss=loss_of_batches(images, texts[first], belonging.names[first], model.scale.item(), batch),
        protocol={**(protocol or {}), "loss of": f"batches of {min(batch, len(images)):,} pairs", **_known(pixels)},
        baselines={} if pixels is None else {PIXELS: pixels},
        samples=samples,
    )


def by_pixels(examples: Captioned, learned: Captioned) -> NearestPixel:
    """The scores that the nearest learned picture gives."""
    return NearestPixel(examples.pixels, examples.names, learned.pixels, owners_of(learned), learned.names)


def _known(pixels: NearestPixel | None) -> dict[str, str]:
    """Say how many of the pictures are no news."""
    number = pixels.known() if pixels else 0
    return {"learned": f"{number:,} of these pictures were learned"} if number else {}


def judged_images(run: Run, spec: DualEncoder, asked: Asked, split: str | None, watcher: Observer) -> ImagesData:
    """The pictures that a run is judged by: a named set's or a folder's, or the run's own."""
    assert isinstance(run.data, ImagesSpec)
    if asked.images is None:
        return prepared_images(run.data, spec, run.tokenizer, watcher)
    given: dict[str, Any] = {**reading_of(spec), **asked.columns("images")}
    return read_images(
        rooted(asked.images, PICTURES),
        **given,
        tokenizer=run.tokenizer,
        held_out=run.data.held_out,
        split=split,
        progress=watched_reading(watcher),
    )


def learned_images(run: Run, spec: DualEncoder, watcher: Observer) -> Captioned | None:
    """The pictures that a run learned, to compare pixels with; None, and a word on it, where they are gone."""
    assert isinstance(run.data, ImagesSpec)
    try:
        dataset = prepared_images(run.data, spec, run.tokenizer, watcher)
    except (DataError, OSError) as error:
        watcher.say(f"The baseline of the nearest pixel is left out: {error}")
        return None
    if dataset.hash == run.data_hash:
        return dataset.tokens("train")
    watcher.say(f"The baseline of the nearest pixel is left out: {run.data.images} has changed since it was learned.")
    return None
