"""Images of two coloured halves, "red left of blue" and "blue left of red", for the tests of re-ranking."""

import csv
from itertools import permutations
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 200, 0),
    "blue": (0, 0, 255),
    "yellow": (250, 220, 0),
    "black": (0, 0, 0),
    "white": (250, 250, 250),
}
SIDE = 8


def halves(left: str, right: str, random: np.random.Generator) -> np.ndarray:
    """Draw two colours side by side with a little noise."""
    image = np.zeros((SIDE, SIDE, 3))
    image[:, : SIDE // 2], image[:, SIDE // 2 :] = COLOURS[left], COLOURS[right]
    return np.clip(image + random.normal(0, 20, image.shape), 0, 255).astype(np.uint8)


def folder_of_halves(folder: Path, times: int = 4, seed: int = 0) -> Path:
    """Write a folder with every pair of colours `times` times and a table of captions."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    rows = []
    for number in range(times):
        for left, right in permutations(COLOURS, 2):
            name = f"{left}-{right}-{number}.png"
            Image.fromarray(halves(left, right, random)).save(folder / name)
            rows.append((name, f"{left} left of {right}"))
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])
    return folder
