"""What the first pictures of two folders show: photos, or masks of these photos."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.images.decode import ImageData, open_image
from shardbeam.transforms.images.header import sniff_format
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.image_bytes import read_bytes

# Pairs that are looked at, and rows of pixels of each picture.
_PAIRS = 50
_ROWS = 256
# More colours than these, one beside the other, are no classes.
_MANY_VALUES = 256
_FEW_VALUES = 32
# In a map of classes, at least this share of the pixels equals the pixel to the right.
_FLAT = 0.75


class Look(NamedTuple):
    """What the pictures of one folder have in common.

    Attributes:
        values: How many colours they have, together.
        is_gray: Whether all are gray.
        flat: The share of pixels that equal the pixel to their right.
    """

    values: int
    is_gray: bool
    flat: float

    @property
    def has_few_values(self) -> bool:
        """Whether the pictures have no more colours than most maps have classes."""
        return self.values <= _FEW_VALUES

    @property
    def is_like_masks(self) -> bool:
        """Whether the pictures have areas of one colour each, and few colours."""
        return self.has_few_values or (self.values <= _MANY_VALUES and self.flat >= _FLAT)

    @property
    def is_like_photos(self) -> bool:
        """Whether the pictures are in colour, and no maps."""
        return not self.is_gray and not self.is_like_masks


class LookOfPairs(NamedTuple):
    """What the first pairs of pictures show; pairs that cannot be read do not count.

    Attributes:
        photos: The first pictures of the pairs.
        masks: The second ones.
        other_size: A pair of which the sizes differ, in words; empty if there is none.
    """

    photos: Look
    masks: Look
    other_size: str = ""


class _Picture(NamedTuple):
    """Some rows of a picture: their colours, and how many pixels equal the one to their right."""

    size: tuple[int, int]
    colours: npt.NDArray[np.uint32]
    equal: int
    compared: int


def look_at_pairs(
    pairs: Iterable[tuple[str, str]], *, files: Mapping[str, ImageRef]
) -> LookOfPairs | None:
    """Looks at the first 50 pairs; returns None where none of them can be read.

    Args:
        pairs: `(photo, what may be its mask)`, paths.
        files: `{path: the file}`
    """
    first = [*itertools.islice(pairs, _PAIRS)]
    columns = [*zip(*first, strict=True)]
    storage = storage_for(files[first[0][0]].uri)
    pictures = [storage.map_many(_read, [files[path] for path in paths]) for paths in columns]
    seen: list[tuple[_Picture, _Picture]] = []
    other_size = ""
    for paths, photo, mask in zip(first, *pictures, strict=True):
        if photo is None or mask is None:
            continue
        seen.append((photo, mask))
        # A turned photo has its sides exchanged.
        if mask.size not in (photo.size, photo.size[::-1]) and not other_size:
            sizes = (f"{width}x{height}" for width, height in (photo.size, mask.size))
            other_size = " and ".join(
                f"{path} has {size}" for path, size in zip(paths, sizes, strict=True)
            )
    if not seen:
        return None
    photos, masks = zip(*seen, strict=True)
    return LookOfPairs(_look(photos), _look(masks), other_size)


def _read(file: ImageRef) -> _Picture | None:
    """Reads some rows of a picture; returns None where that cannot be done."""
    try:
        data = read_bytes(file, max_bytes=limits.IMAGE_ANNOTATION_BYTES)
        file_format = sniff_format(data)
        if file_format is None:
            return None
        with open_image(ImageData(data, file_format, ImageConfig())).decode() as decoded:
            pixels = np.asarray(decoded.image.convert("RGB"), np.uint32)
    except RejectedError:
        return None
    height, width, _ = pixels.shape
    rows = pixels[:: max(1, height // _ROWS)]
    packed = rows[..., 0] << 16 | rows[..., 1] << 8 | rows[..., 2]
    equal = int(np.count_nonzero(packed[:, 1:] == packed[:, :-1]))
    return _Picture((width, height), np.unique(packed), equal, packed[:, 1:].size)


def _look(pictures: Sequence[_Picture]) -> Look:
    colours = np.unique(np.concatenate([each.colours for each in pictures]))
    is_gray = bool(np.all(colours == (colours & 255) * 0x010101))
    equal, compared = (
        sum(getattr(each, name) for each in pictures) for name in ("equal", "compared")
    )
    return Look(len(colours), is_gray, equal / max(1, compared))
