"""Decides whether the annotations of a source exchange width and height."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import msgspec

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.map_ahead import map_many
from shardbeam.transforms.core.records import Coding, SizedImage
from shardbeam.transforms.examples.geometry.frame import is_scaled
from shardbeam.transforms.images.decode import ImageData, open_image
from shardbeam.transforms.images.header import ImageHeader
from shardbeam.transforms.images.read_header import recognize_image
from shardbeam.transforms.storage.image_bytes import read_bytes

# At least ten images whose size is not the annotated one, and 95 % of these with exchanged sides,
# show that a source exchanges width and height.
MIN_MISFITS = 10
_MIN_PERCENT = 95
# The header of nearly every JPEG or PNG file ends before this; otherwise all of it is read.
_HEADER_BYTES = 1 << 16
_THREADS = 16
_ANY_IMAGE = ImageConfig()


class SizeFields:
    """Whether sources exchange width and height in their annotations; threads may share it.

    A source's first images decide. Their headers are read when an image of the source asks for the
    first time, because its annotated sides are its own, exchanged: the images of most sources never
    do.

    Args:
        first: `{source: its first images}`, in the order of their keys.
    """

    def __init__(self, first: Mapping[str, Sequence[SizedImage]]) -> None:
        self._first = first
        self._decided: dict[str, bool] = {}
        self._lock = threading.Lock()

    def are_exchanged(self, source: str) -> bool:
        """Returns whether a source exchanges width and height.

        Raises:
            InputError: The storage cannot be read at all.
            OSError: The worker is out of file descriptors or memory.
        """
        with self._lock:
            if source not in self._decided:
                self._decided[source] = _decide(self._first.get(source, ()))
            return self._decided[source]


def _decide(images: Sequence[SizedImage]) -> bool:
    misfits = exchanged = 0
    if len(images) < MIN_MISFITS:
        return False
    headers = map_many(_read_header, images, threads=_THREADS)
    for image, header in zip(images, headers, strict=True):
        if header is None:
            continue
        annotated, stored = (image.width, image.height), (header.width, header.height)
        # Annotations of a file with an EXIF orientation may refer to either.
        sizes = (stored, stored[::-1]) if header.is_sideways else (stored,)
        if not any(is_scaled(annotated, size) for size in sizes):
            misfits += 1
            exchanged += annotated == stored[::-1]
    return misfits >= MIN_MISFITS and 100 * exchanged >= _MIN_PERCENT * misfits


def _read_header(sized: SizedImage) -> ImageHeader | None:
    """Reads an image's header; None if it cannot be read."""
    image = sized.image
    try:
        if image.coding is Coding.FILE and not image.header_bytes:
            begin = msgspec.structs.replace(
                image,
                size_bytes=min(image.size_bytes, _HEADER_BYTES),
                whole=image.whole and image.size_bytes <= _HEADER_BYTES,
                crc32=-1,
            )
            recognized = recognize_image(read_bytes(begin))
            if recognized is not None and recognized[1] is not None:
                return recognized[1]
        data = read_bytes(image)
        recognized = recognize_image(data)
        if recognized is None:
            return None
        file_format, header = recognized
        if header is not None:
            return header
        opened = open_image(ImageData(data, file_format, _ANY_IMAGE), converts=False)
        width, height = opened.image.size
        return msgspec.structs.replace(opened.header, width=width, height=height)
    except RejectedError:
        return None
