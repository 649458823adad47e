"""Pictures with captions as data: `prepare_images` for training, `read_images` for judging others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lemma.data.examples import Rows
from lemma.data.images.captioned import Captioned
from lemma.data.images.dividing import Stretches, divide
from lemma.data.images.levelling import levelled, numbered
from lemma.data.images.listing import Listing, Picture, list_pictures, told
from lemma.data.images.pixels import Decoded, decoded
from lemma.data.learned import learned_tokenizer
from lemma.data.marking import encode_marked
from lemma.data.progress import Progress
from lemma.data.tokenizer import Tokenizer
from lemma.errors import DataError, unknown
from lemma.spec import MARKS, ImagesSpec

WHOLE = "images"
"""The one split of a folder that is judged."""


@dataclass(frozen=True)
class ImagesData:
    """Pictures with captions, ready for training or judging."""

    tokenizer: Tokenizer
    hash: str
    """The SHA-256 of the table and the files."""
    about: str
    """What they are, in words."""
    skipped: tuple[str, ...]
    """What was taken, left out or cut, in words."""
    by_split: Mapping[str, tuple[Picture, ...]] = field(repr=False)
    tokens_by_split: Mapping[str, Captioned] = field(repr=False)
    marked: bool
    """Whether each caption stands between `<start>` and `<end>`."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.by_split)

    def pictures(self, split: str) -> tuple[Picture, ...]:
        """The pictures of a split with their captions."""
        return self.by_split[self._known(split)]

    def tokens(self, split: str) -> Captioned:
        """The pictures of a split as pixels and tokens, in the same order."""
        return self.tokens_by_split[self._known(split)]

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the data's size."""
        return {"vocabulary": self.tokenizer.vocabulary + (len(MARKS) if self.marked else 0)}

    def _known(self, split: str) -> str:
        if split not in self.by_split:
            raise DataError(f"there is no split '{split}' in {self.about}. It has: {', '.join(self.splits)}.")
        return split


def prepare_images(
    spec: ImagesSpec,
    *,
    side: int,
    length: int,
    marked: bool,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> ImagesData:
    """Read pictures for training, each of `side` × `side` pixels, and the first `length` tokens of their captions.

    With `marked` a caption stands between `<start>` and `<end>`, which count. Captions are read in small letters. The
    tokenizer is learned from the training captions unless one is given.
    """
    listing = list_pictures(spec.images, spec.captions, spec.image, spec.caption, progress)
    read, kept = _readable(listing, side, progress)
    stretches = divide(listing, kept, spec.held_out)
    if tokenizer is None:
        training = [listing.pictures[place] for place in kept[stretches["train"]]]
        texts = [levelled(caption) for picture in training for caption in picture.captions]
        tokenizer = learned_tokenizer(spec.tokenizer, texts, progress)
    return _joined(listing, read, kept, stretches, listing.about, tokenizer, length, marked, progress)


def read_images(
    name: str,
    *,
    side: int,
    length: int,
    marked: bool,
    tokenizer: Tokenizer,
    captions: str | None = None,
    image: str | None = None,
    caption: str | None = None,
    held_out: float = ImagesSpec.model_fields["held_out"].default,
    split: str | None = None,
    progress: Progress | None = None,
) -> ImagesData:
    """Read pictures to judge, as one split: of a set known by name `split` or else its test, of a folder all."""
    listing = list_pictures(name, captions, image, caption, progress)
    read, kept = _readable(listing, side, progress)
    stretches, about = {WHOLE: slice(0, len(kept))}, listing.about
    if listing.named or split is not None:
        chosen, divided = split or "test", divide(listing, kept, held_out)
        if chosen not in divided:
            raise DataError(unknown("split", chosen, divided))
        stretches, about = {chosen: divided[chosen]}, f"{listing.about} ({chosen})"
    return _joined(listing, read, kept, stretches, about, tokenizer, length, marked, progress)


def _readable(listing: Listing, side: int, progress: Progress | None) -> tuple[Decoded, list[int]]:
    """The pixels, and the places in the list of the pictures that they are of."""
    read = decoded(listing, side, progress)
    kept = [place for place in range(len(listing.pictures)) if place not in read.broken]
    if not kept:
        raise DataError(f"{listing.about}: no picture could be read: {'; '.join(_broken(listing, read))}.")
    return read, kept


def _broken(listing: Listing, read: Decoded) -> list[str]:
    names = sorted(f"{listing.pictures[place].name} ({why})" for place, why in read.broken.items())
    return told(names, "pictures cannot be read", "picture cannot be read")


def _joined(
    listing: Listing,
    read: Decoded,
    kept: Sequence[int],
    stretches: Stretches,
    about: str,
    tokenizer: Tokenizer,
    length: int,
    marked: bool,
    progress: Progress | None,
) -> ImagesData:
    pictures = {
        split: tuple(listing.pictures[place] for place in kept[stretch]) for split, stretch in stretches.items()
    }
    texts = {split: [levelled(text) for one in some for text in one.captions] for split, some in pictures.items()}
    rows, cut = encode_marked(texts, tokenizer, length, marked, "captions", progress)
    tokens = {split: _captioned(read, stretch, pictures[split], rows[split]) for split, stretch in stretches.items()}
    said = (*listing.said, *_broken(listing, read), *cut)
    return ImagesData(tokenizer, listing.hash, about, said, pictures, tokens, marked)


def _captioned(read: Decoded, stretch: slice, pictures: Sequence[Picture], rows: Rows) -> Captioned:
    counts = [len(picture.captions) for picture in pictures]
    names = numbered(caption for picture in pictures for caption in picture.captions)
    return Captioned(read.pixels[stretch], rows, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]), names)
