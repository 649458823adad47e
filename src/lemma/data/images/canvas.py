"""What is done to a picture before it is pixels: its colours on white, its frame, its square."""

from typing import TYPE_CHECKING, Any

import numpy as np

from lemma.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MARGIN = 1 / 16
"""What is left free on each side of a drawing that is framed, as a share of its longer side."""
WHITE = (255, 255, 255, 255)


def pillow() -> Any:
    """Pillow's module of images, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            "pictures are read by Pillow, which is not installed. Install it: pip install 'lemma[images]'"
        ) from None
    return Image


def on_white(picture: "Image") -> "Image":
    """A picture in red, green and blue; what is transparent is white."""
    if picture.mode.startswith(("I", "F")):
        picture = _eight_bits(picture)
    if not _transparent(picture):
        return picture.convert("RGB")
    over = picture.convert("RGBA")
    return pillow().alpha_composite(pillow().new("RGBA", over.size, WHITE), over).convert("RGB")


def _transparent(picture: "Image") -> bool:
    return picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info


def _eight_bits(picture: "Image") -> "Image":
    """A picture of one deep channel: 16 bits from 0 to 65,535, fractions from 0 to 1, others from least to most."""
    values = np.nan_to_num(np.asarray(picture, dtype=np.float64))
    least, most = float(values.min()), float(values.max())
    white = 1.0 if picture.mode == "F" else 65_535.0
    if least < 0 or most > white:
        values, white = values - least, most - least
    return pillow().fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def frame(picture: "Image") -> "Image":
    """A drawing cut to what is not transparent, in the middle of a square with a small margin."""
    whole = picture.convert("RGBA")
    box = whole.getchannel("A").getbbox()
    if box is None:
        raise DataError("nothing is drawn in it")
    left, top, right, bottom = box
    longest = max(right - left, bottom - top)
    side = longest + 2 * round(MARGIN * longest)
    left, top = left - (side - (right - left)) // 2, top - (side - (bottom - top)) // 2
    return whole.crop((left, top, left + side, top + side))


def square(picture: "Image", side: int) -> "Image":
    """A picture as large as fits into a square, in its middle, on white."""
    Image = pillow()
    scale = side / max(picture.size)
    width, height = (max(1, round(scale * length)) for length in picture.size)
    resized = picture.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    if width == height == side:
        return resized
    padded = Image.new("RGB", (side, side), WHITE[:3])
    padded.paste(resized, ((side - width) // 2, (side - height) // 2))
    return padded
