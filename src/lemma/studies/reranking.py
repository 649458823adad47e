"""A re-ranker at work: what it learns from, and what looking twice gains over its dual encoder alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lemma.data import Captioned, ImagesData
from lemma.evaluation import (
    PairLogits,
    Products,
    RerankingScore,
    belonging_of,
    score_reranking,
)
from lemma.models import CrossAttentionModel, DualEncoderModel, embed_images, embed_texts
from lemma.runs import Run, RunFolder, load
from lemma.studies.images import ImagesLesson

VALIDATED = 1000
"""Pictures that a validation looks at, if there are more: looking takes time."""


@dataclass(frozen=True)
class RerankingLesson:
    """Of a re-ranker: how well it orders again what its dual encoder finds among pictures that were held out."""

    dataset: ImagesData
    batch: int

    def evaluate(self, model: CrossAttentionModel) -> RerankingScore:
        """Search the validation pictures, and look twice; intervals are for the end."""
        return reranked(model, part_of(self.dataset.tokens("validation"), VALIDATED), samples=0)

    def sample(self, model: CrossAttentionModel) -> list[str]:
        """The caption that the dual encoder finds for each of the first few pictures held out."""
        return ImagesLesson(self.dataset, self.batch).sample(model.towers)


def part_of(examples: Captioned, number: int) -> Captioned:
    """So many of the pictures, with all their captions, the same ones every time."""
    pictures = len(examples.first) - 1
    if pictures <= number:
        return examples
    chosen = np.sort(np.random.default_rng(0).permutation(pictures)[:number])
    counts = np.diff(examples.first)[chosen]
    captions = np.concatenate([np.arange(*examples.first[place : place + 2]) for place in chosen])
    return Captioned(
        np.asarray(examples.pixels[chosen]),
        examples.rows.chosen(captions),
        np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        examples.names[captions],
    )


def reranked(
    model: CrossAttentionModel,
    examples: Captioned,
    *,
    base: DualEncoderModel | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> RerankingScore:
    """Let a re-ranker find captions by pictures and pictures by captions; compare with `base`, or with its towers."""
    return score_reranking(
        products_of(model.towers, examples),
        belonging_of(examples),
        model.spec.candidates,
        PairLogits(model, examples.pixels, examples.rows),
        before=None if base is None else products_of(base, examples),
        protocol=protocol,
        samples=samples,
    )


def products_of(towers: DualEncoderModel, examples: Captioned) -> Products:
    """How alike a dual encoder finds all of these pictures and captions."""
    return Products(embed_images(towers, examples.pixels), embed_texts(towers, examples.rows))


def base_of_reranker(run: Run) -> DualEncoderModel | None:
    """The dual encoder that a re-ranker was made of, if its own towers have learned since; else None."""
    if run.adaptation is None or run.adaptation.method.kind == "frozen":
        return None
    device = next(run.module.parameters()).device
    return load(RunFolder.open(run.path).base().path, str(device)).dual_encoder
