"""Decoding of every image format: colours, rotation, padding to a square, damaged files."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lemma.data import images as canvas
from lemma.data import images as decoding
from lemma.data.images import decode_image, decode_images, find_images, make_thumbnail
from lemma.errors import DataError, InputError

RED, HALF_RED_ON_WHITE, WHITE = (255, 0, 0), (255, 127, 127), (255, 255, 255)
GREY = (51, 51, 51)


def saved(tmp_path: Path, image: Image.Image, name: str, **options: object) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


def colour(path: Path, side: int = 8) -> tuple[int, ...]:
    """Return the colour of a uniform image."""
    pixels = decode_image(path, side)
    assert pixels.shape == (3, side, side) and pixels.dtype == np.uint8
    assert (pixels.max(axis=(1, 2)) - pixels.min(axis=(1, 2)) <= 1).all()
    return tuple(int(value) for value in pixels[:, 0, 0])


@pytest.mark.parametrize("name", ["a.png", "a.gif", "a.webp", "a.bmp", "a.tiff", "a.ppm", "a.ico", "a.jp2", "A.JPG"])
def test_common_image_formats_preserve_colour(tmp_path: Path, name: str) -> None:
    options = {"lossless": True} if name == "a.webp" else {}
    path = saved(tmp_path, Image.new("RGB", (20, 20), RED), name, **options)
    assert np.abs(np.subtract(colour(path), RED)).max() <= (2 if name == "A.JPG" else 0)


MODES = {
    "1": (Image.new("1", (9, 9), 1), WHITE),
    "L": (Image.new("L", (9, 9), 51), GREY),
    "LA": (Image.new("LA", (9, 9), (0, 51)), (204, 204, 204)),
    "P": (Image.new("RGB", (9, 9), RED).quantize(4), RED),
    "RGBA": (Image.new("RGBA", (9, 9), (255, 0, 0, 128)), HALF_RED_ON_WHITE),
    "nothing drawn": (Image.new("RGBA", (9, 9), (255, 0, 0, 0)), WHITE),
    "16 bit": (Image.fromarray(np.full((9, 9), 51 * 257, np.uint16)), GREY),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_png_mode_is_composited_on_white(tmp_path: Path, mode: str) -> None:
    image, expected = MODES[mode]
    assert colour(saved(tmp_path, image, "a.png")) == expected


DEEP = {
    "CMYK": (Image.new("CMYK", (9, 9), (0, 255, 255, 0)), RED),
    "fractions": (Image.fromarray(np.full((9, 9), 0.2, np.float32)), GREY),
    "32 bit": (Image.fromarray(np.full((9, 9), 51 * 257, np.int32)), GREY),
    "16 bit": (Image.fromarray(np.full((9, 9), 51 * 257, np.uint16)), GREY),
}


@pytest.mark.parametrize("mode", DEEP)
def test_tiff_16_bit_and_cmyk_colours_are_read(tmp_path: Path, mode: str) -> None:
    image, expected = DEEP[mode]
    assert colour(saved(tmp_path, image, "a.tif")) == expected


def test_values_beyond_sixteen_bits_are_scaled_to_their_range(tmp_path: Path) -> None:
    steps = np.repeat(np.array([[-70_000], [0], [70_000]], np.int32), 3, axis=1)
    pixels = decode_image(saved(tmp_path, Image.fromarray(steps), "a.tif"), 3)
    assert pixels[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("options", [{"transparency": 0}, {"transparency": bytes([0, 255])}])
def test_transparent_palette_colour_becomes_white(tmp_path: Path, options: dict[str, object]) -> None:
    image = Image.new("P", (9, 9), 0)
    image.putpalette([0, 0, 0, 0, 0, 255])
    assert colour(saved(tmp_path, image, "a.png", **options)) == WHITE


def test_animation_uses_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (9, 9), tint) for tint in (RED, (0, 0, 255))]
    path = saved(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    assert colour(path) == RED


def corners(path: Path) -> list[int]:
    """Return which corner colour is at which corner of an image of 4 × 4."""
    pixels = decode_image(path, 4)[0]
    return [round(float(pixels[row, column]) / 60) for row in (0, 3) for column in (0, 3)]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    upright = np.kron(np.array([[0, 60], [120, 180]], np.uint8), np.ones((2, 2), np.uint8))
    # EXIF 2.3: positions of the stored first row and first column in the displayed image.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),
        7: upright[::-1, ::-1].T,
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, Image.fromarray(np.ascontiguousarray(stored)), "a.png", exif=exif)
    assert corners(path) == [0, 1, 2, 3]


@pytest.mark.parametrize(("size", "inside"), [((40, 20), np.s_[:, 2:6, :]), ((20, 40), np.s_[:, :, 2:6])])
def test_non_square_image_is_centred_on_white(tmp_path: Path, size: tuple[int, int], inside: tuple[slice, ...]) -> None:
    pixels = decode_image(saved(tmp_path, Image.new("RGB", size, (10, 20, 30)), "a.png"), 8).copy()
    assert (pixels[inside] == np.array([10, 20, 30])[:, None, None]).all()
    pixels[inside] = 255
    assert (pixels == 255).all()


def test_one_pixel_line_survives_decoding(tmp_path: Path) -> None:
    pixels = decode_image(saved(tmp_path, Image.new("RGB", (500, 1), 0), "a.png"), 16)
    assert (pixels == 0).all(axis=(0, 2)).sum() == 1


def test_downscaling_averages_pixels(tmp_path: Path) -> None:
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    pixels = decode_image(saved(tmp_path, Image.fromarray(board.astype(np.uint8)), "a.png"), 8)
    assert np.abs(pixels.astype(int) - 127).max() <= 8


def test_cropped_margin_does_not_depend_on_position(tmp_path: Path) -> None:
    def framed(box: tuple[int, int, int, int], name: str) -> np.ndarray:
        image = Image.new("RGBA", (100, 100))
        image.paste((255, 0, 0, 255), box)
        return decode_image(saved(tmp_path, image, name), 18, crop_margins=True)

    first, second = framed((0, 0, 32, 32), "a.png"), framed((40, 60, 72, 92), "b.png")
    assert (first == second).all()
    samples = np.argwhere(first[1] < 128)
    assert samples.min() == 1 and samples.max() == 16  # 32 pixels and 2 × 2 of margin are 36, here half as many


def test_cropping_an_empty_drawing_is_rejected(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.new("RGBA", (9, 9)), "a.png")
    with pytest.raises(DataError, match=r"a\.png: nothing is drawn in it"):
        decode_image(path, 8, crop_margins=True)


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of a few bytes with a large declared size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def half(name: str) -> bytes:
    text = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(text, format=name)
    return text.getvalue()[: len(text.getvalue()) // 2]


BROKEN = {
    "empty.png": (b"", "the file is empty"),
    "text.png": (b"not an image at all", "not an image of a known format"),
    "half.png": (half("PNG"), "truncated"),
    "half.jpg": (half("JPEG"), "truncated"),
    "half.webp": (half("WEBP"), ""),
    "large.png": (bomb(12_000, 12_000), "12,000 × 12,000 pixels are more than the 100,000,000"),
    "huge.png": (bomb(60_000, 60_000), "more than the 100,000,000 pixels"),
    "page.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image of a known format"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_image_error_names_file_and_reason(tmp_path: Path, name: str) -> None:
    content, reason = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for read in (lambda path: decode_image(path, 8), lambda path: make_thumbnail(path, 8)):
            with pytest.raises(DataError, match=name) as caught:
                read(tmp_path / name)
            assert reason in str(caught.value)


def test_missing_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.png: there is no such file"):
        decode_image(tmp_path / "a.png", 8)


def test_decoding_preserves_order_of_images_and_errors(tmp_path: Path) -> None:
    paths = [saved(tmp_path, Image.new("L", (9, 9), shade), f"{shade}.png") for shade in range(100)]
    paths[50].write_bytes(b"broken")
    read = list(decode_images(paths, 4))
    assert isinstance(read[50], DataError)
    assert [index for index, pixels in enumerate(read) if index != 50 and pixels[0, 0, 0] != index] == []


def test_at_most_one_batch_is_decoded_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, decoded = saved(tmp_path, Image.new("L", (9, 9)), "a.png"), []
    monkeypatch.setattr(
        decoding, "_decode", lambda path, side, framed: decoded.append(path) or np.zeros((3, side, side))
    )
    next(decode_images([path] * 10_000, 4))
    assert 1 <= len(decoded) <= 100


def test_thumbnail_is_a_small_png_with_equal_aspect_ratio(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.new("RGBA", (200, 100), (255, 0, 0, 128)), "a.png")
    small = Image.open(io.BytesIO(make_thumbnail(path, 50)))
    assert (small.format, small.size, small.getpixel((3, 3))) == ("PNG", (50, 25), HALF_RED_ON_WHITE)


def test_images_are_listed_in_visible_subfolders_only(tmp_path: Path) -> None:
    for name in ("b.PNG", "sub/deep/a.jpeg", "sub/notes.txt", ".hidden.png", ".git/c.png", "d.png/e.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    result = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert result == ["b.PNG", "d.png/e.webp", "sub/deep/a.jpeg"]


def test_missing_pillow_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"pip install 'lemma-lm\[images\]'"):
        canvas.import_pillow()
    with pytest.raises(InputError, match=r"pip install 'lemma-lm\[images\]'"):
        decode_image(tmp_path / "a.png", 8)
