"""The published emoji by name, in two styles. Downloaded into the default data home; skipped when offline."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lemma.data.corpora import IMAGES, convert_font, fetch_corpus, read_emoji_names
from lemma.data.images import CaptionedImages, draw_emoji, prepare_images
from lemma.data.splits import Splits
from lemma.errors import DataError
from lemma.spec.data import ImagesSpec

USUAL_HOME = os.environ.get("LEMMA_HOME")
STYLES = ("emoji", "emoji-openmoji")


@contextmanager
def in_usual_home() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", USUAL_HOME) if USUAL_HOME else patch.delenv("LEMMA_HOME", raising=False)
        yield


@pytest.fixture(scope="module")
def styles() -> dict[str, Splits[CaptionedImages]]:
    """Prepare both styles in the default data home, where the second is drawn once."""
    try:
        with in_usual_home():
            return {
                name: prepare_images(ImagesSpec(images=name), side=32, length=16, special_tokens=True)
                for name in STYLES
            }
    except DataError as error:
        if "pip could not download" in str(error):
            pytest.skip("the emoji cannot be fetched here")
        raise


@pytest.fixture
def usual_home(styles: dict[str, Splits[CaptionedImages]]) -> Iterator[None]:
    with in_usual_home():
        yield


def names_of(data: Splits[CaptionedImages], split: str) -> list[str]:
    return [caption for image in data.item(split).images for caption in image.captions]


def test_both_styles_have_the_same_names_in_the_same_splits(styles: dict[str, Splits[CaptionedImages]]) -> None:
    flat, samples = (styles[name] for name in STYLES)
    assert {split: len(names_of(flat, split)) for split in flat.split_names} == {
        "train": 1323,
        "validation": 162,
        "test": 167,
    }
    assert all(names_of(flat, split) == names_of(samples, split) for split in flat.split_names)
    everything = [name for split in flat.split_names for name in names_of(flat, split)]
    assert len(everything) == len(set(everything)) == 1652
    assert {"red heart", "grinning face", "piñata", "black cat"} < set(everything)
    assert not any("skin tone" in name or (name.startswith("flag ") and name != "flag in hole") for name in everything)
    assert flat.notes == () and samples.notes[0].startswith("9 names have no image in the font: cracking face")


@pytest.mark.usefixtures("usual_home")
def test_stored_emoji_have_the_documented_sizes_and_counts(styles: dict[str, Splits[CaptionedImages]]) -> None:
    for name, data in styles.items():
        assert sum(path.stat().st_size for path in fetch_corpus(IMAGES[name])) == IMAGES[name].size
        assert data.hash == IMAGES[name].stored_hash
    assert "1,652 emoji" in IMAGES["emoji"].description


def test_both_styles_fill_their_square_alike(styles: dict[str, Splits[CaptionedImages]]) -> None:
    for data in styles.values():
        inked = (np.asarray(data.item("train").pixels) < 250).any(axis=1)
        longest = np.maximum(*(inked.any(axis=axis).sum(axis=1) for axis in (1, 2)))
        assert np.quantile(longest, 0.02) >= 27 and longest.max() <= 31  # 32 minus a margin of a sixteenth on each side


def test_red_heart_emoji_is_red_and_similar_in_both_styles(styles: dict[str, Splits[CaptionedImages]]) -> None:
    hearts = []
    for data in styles.values():
        split, index = next(
            (split, names_of(data, split).index("red heart"))
            for split in data.split_names
            if "red heart" in names_of(data, split)
        )
        hearts.append(data.item(split).pixels[index])
    assert all(heart[0, 14:18, 14:18].min() > 200 and heart[1, 14:18, 14:18].max() < 110 for heart in hearts)
    assert all(heart[:, 0, 0].tolist() == [255, 255, 255] for heart in hearts)


@pytest.mark.usefixtures("usual_home")
def test_evaluation_uses_the_test_split_unless_another_is_named(styles: dict[str, Splits[CaptionedImages]]) -> None:
    data = styles["emoji-openmoji"]
    kwargs = {"side": 32, "length": 16, "special_tokens": True, "tokenizer": styles["emoji"].tokenizer}
    assert (
        prepare_images(ImagesSpec(images="emoji-openmoji"), evaluation=True, **kwargs).item("test").images
        == data.item("test").images
    )
    seen = prepare_images(ImagesSpec(images="emoji-openmoji"), evaluation=True, split="train", **kwargs)
    assert seen.split_names == ("train",) and seen.description == "emoji-openmoji (train)"


@pytest.fixture
def font(styles: dict[str, Splits[CaptionedImages]]) -> Path:
    """Return OpenMoji's font; drawings are cached in the data home of the test."""
    with in_usual_home():
        return next(path for path in fetch_corpus(IMAGES["emoji-openmoji"]) if path.suffix == ".ttf")


SOME = ["1f600.png", "2764-fe0f.png", "1f468-200d-1f4bb.png"]


def test_emoji_missing_from_the_font_are_skipped(font: Path) -> None:
    lacking = ["1faeb.png", "1f600-1f600.png", "200d.png"]
    assert list(draw_emoji(font, [*SOME, *lacking])) == sorted(SOME)


def test_emoji_sequences_are_skipped_without_text_shaping(font: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFont

    basic = ImageFont.truetype(font, 128, layout_engine=ImageFont.Layout.BASIC)
    monkeypatch.setattr(ImageFont, "truetype", lambda *_: basic)
    assert "1f468-200d-1f4bb.png" not in draw_emoji(font, SOME) and "1f600.png" in draw_emoji(font, SOME)


def test_drawn_emoji_are_cached_and_redrawn_when_damaged(font: Path) -> None:
    first = {name: path.read_bytes() for name, path in draw_emoji(font, SOME).items()}
    path = draw_emoji(font, SOME)["1f600.png"]
    stamp = path.stat().st_mtime_ns
    assert draw_emoji(font, SOME)["1f600.png"].stat().st_mtime_ns == stamp
    path.write_bytes(b"damaged")
    assert {name: path.read_bytes() for name, path in draw_emoji(font, SOME).items()} == first


def test_emoji_names_exclude_flags_skin_tones_and_underscores(tmp_path: Path) -> None:
    rows = {
        "\U0001f44b": ":waving_hand:",
        "\U0001f44b\U0001f3fd": ":waving_hand_medium_skin_tone:",
        "\U0001f1eb\U0001f1f7": ":France:",
        "\U0001f3f4\U000e0067\U000e0062\U000e007f": ":England:",
        "\U0001f3c1": ":chequered_flag:",
    }
    names = {text: {"en": name, "status": 2} for text, name in rows.items()} | {"x": {"en": ":x:", "status": 4}}
    (tmp_path / "emoji.json").write_text(json.dumps(names))
    assert read_emoji_names(tmp_path / "emoji.json") == {"1f44b": "waving hand", "1f3c1": "chequered flag"}
    (tmp_path / "into").mkdir()
    (tmp_path / "a.ttf").write_bytes(b"font")
    convert_font([tmp_path / "a.ttf", tmp_path / "emoji.json"], tmp_path / "into")
    table = (tmp_path / "into" / "captions.csv").read_text()
    assert table == "image,caption\n1f44b.png,waving hand\n1f3c1.png,chequered flag\n"
