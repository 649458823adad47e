"""Small coloured shapes with captions, and small dual encoders trained on them."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import lemma
from lemma.data.batches import TokenRows
from lemma.data.images import CaptionedImages
from lemma.files import data_home
from lemma.spec.models import DualEncoder, Encoder, Lstm
from lemma.training.loop import TrainingResult

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "yellow": (240, 200, 30)}
SHAPES = ("circle", "square", "triangle")
SIDE = 16
SPEC = DualEncoder(
    grid=4,
    patch=4,
    image_width=32,
    image_depth=1,
    image_heads=2,
    shared=16,
    body=Encoder(width=16, depth=1, heads=2, context=8),
)
LSTM = SPEC.replace(body=Lstm(width=8, hidden=16).to_dict())
QUICK: dict[str, Any] = {"steps": 20, "batch": 8, "warm_up": 4, "device": "cpu", "learning_rate": 3e-3}


def draw_shape(colour: str, shape: str, move: int = 0, side: int = SIDE) -> Image.Image:
    """Draw a shape on white, slightly shifted."""
    image = Image.new("RGB", (side, side), "white")
    draw, box = ImageDraw.Draw(image), (3 + move, 3, side - 4 + move, side - 4)
    if shape == "circle":
        draw.ellipse(box, fill=COLOURS[colour])
    elif shape == "square":
        draw.rectangle(box, fill=COLOURS[colour])
    else:
        draw.polygon([(side // 2 + move, 2), (2 + move, side - 3), (side - 3 + move, side - 3)], fill=COLOURS[colour])
    return image


def shapes(folder: Path, copies: int = 1) -> Path:
    """Write a folder with several drawings of the twelve shapes and captions.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "captions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption"])
        for copy in range(copies):
            for colour in COLOURS:
                for shape in SHAPES:
                    name = f"{colour}-{shape}-{copy}.png"
                    draw_shape(colour, shape, copy % 3 - 1).save(folder / name)
                    table.writerow([name, f"a {colour} {shape}"])
    return folder


def token_names(rows: TokenRows) -> np.ndarray:
    """Return ids of captions, equal for equal tokens."""
    seen: dict[bytes, int] = {}
    keys = (rows.pad([row]).tobytes() for row in range(len(rows.lengths)))
    return np.array([seen.setdefault(key, len(seen)) for key in keys])


def random_captioned_images(count: int = 12, captions: int = 1, vocabulary: int = 20, seed: int = 0) -> CaptionedImages:
    """Return random images with random captions of two to five tokens."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, size=(count, 3, SIDE, SIDE)).astype(np.uint8)
    lengths = random.integers(2, 6, size=count * captions)
    tokens = random.integers(0, vocabulary, size=lengths.sum())
    rows = TokenRows(tokens, np.concatenate([[0], np.cumsum(lengths)]))
    return CaptionedImages(pixels, rows, captions * np.arange(count + 1), token_names(rows))


def train_shapes(out: Path, **words: Any) -> TrainingResult:
    """Train the small dual encoder on shapes in the data home."""
    folder = data_home() / "shapes"
    if not folder.exists():
        shapes(folder, 3)
    return lemma.train(SPEC, images=folder, out=out, progress=False, tokenizer="words", **{**QUICK, **words})
