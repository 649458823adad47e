"""An untrained dual encoder as a finished run for the tests of search, determined by its seed."""

from pathlib import Path

import torch

from image_runs import COLOURS, LSTM, SHAPES, SPEC, draw_shape
from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.models.build import build
from lemma.runs.checkpoint import named_weights
from lemma.runs.folder import RunFolder
from lemma.spec.data import Characters, ImagesSpec, Words
from lemma.spec.models import CrossAttention, ModelSpec
from lemma.spec.recipe import Recipe

WORDS = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES]


def untrained_run(out: Path, seed: int = 1, *, spec: ModelSpec = SPEC, words: bool = False) -> Path:
    """Write a run with its initial weights."""
    tokenizer: Tokenizer = train_tokenizer(Words() if words else Characters(), WORDS)
    sized = spec.with_data_sizes({"vocabulary": tokenizer.vocabulary + 3})
    torch.manual_seed(seed)
    folder = RunFolder(out, sized, Recipe(device="cpu"), ImagesSpec(images="emoji"), "0").create(tokenizer)
    folder.finish(named_weights(build(sized, 0.0), include_frozen=True), {"steps": 0})
    return out


def untrained_reranker(out: Path, candidates: int = 4) -> Path:
    """Write a re-ranker run with nonzero scores."""
    return untrained_run(out, spec=CrossAttention(towers=SPEC, candidates=candidates))


def image_folder(folder: Path, count: int = 12) -> Path:
    """Write a folder of different images, some in subfolders."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        colour, shape = list(COLOURS)[index % 4], SHAPES[index % 3]
        path = folder / ("inner" if index % 5 == 4 else ".") / f"{index:02}-{colour}-{shape}.png"
        path.parent.mkdir(exist_ok=True)
        draw_shape(colour, shape, index % 3 - 1, side=16 + index).save(path)
    return folder


__all__ = ["LSTM", "SPEC", "WORDS", "image_folder", "untrained_reranker", "untrained_run"]
