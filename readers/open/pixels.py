"""Decodes stored images to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.check import CIFAR_BYTES, cifar_pixels
from shardbeam.transforms.images.decode import ImageData, open_image
from shardbeam.transforms.images.header import FileFormat, check_pixel_count, sniff_format
from shardbeam.transforms.images.mask_file import read_indices
from shardbeam.transforms.images.png import scan_png

# (height, width, channels), 8 or 16 bits.
Pixels = npt.NDArray[np.unsignedinteger[Any]]

_LIMITS = ImageConfig()
# What the decoded masks of one image may take.
_MAX_MASKS_BYTES = 2_000_000_000


def decode_rgb(data: bytes) -> npt.NDArray[np.uint8]:
    """Decodes an image to (height, width, 3), as it is stored: EXIF does not turn it.

    Args:
        data: A file in a format that Pillow reads, or the bytes of a raw CIFAR image.

    Raises:
        RejectedError: It cannot be decoded, or takes more memory than the limits of a build allow.
    """
    file_format = sniff_format(data)
    if file_format is FileFormat.JPEG:
        pixels = _decode_jpeg(data, "RGB")
        if pixels is not None:
            return pixels
    if file_format is None and len(data) == CIFAR_BYTES:
        return cifar_pixels(data)
    with _decoded(data, file_format) as decoded:
        return np.array(decoded.image.convert("RGB"))


def decode_gray(data: bytes) -> Pixels:
    """Decodes a map or a gray image to (height, width, 1).

    Of a PNG with a palette, these are the indices; a PNG of 16 bits gives 16 bits.

    Raises:
        RejectedError: It cannot be decoded, or a PNG has colours.
    """
    file_format = sniff_format(data)
    if file_format is FileFormat.PNG:
        header = scan_png(data, complete=False)
        check_pixel_count(header.width, header.height, max_pixels=_LIMITS.max_pixels)
        # A copy, because Pillow's own array cannot be written to, which PyTorch warns of.
        return np.array(read_indices(data, size=(header.width, header.height)))[..., None]
    pixels = _decode_jpeg(data, "GRAY") if file_format is FileFormat.JPEG else None
    if pixels is not None:
        return pixels
    with _decoded(data, file_format) as decoded:
        return np.array(decoded.image.convert("L"))[..., None]


def decode_masks(
    masks: Sequence[bytes], *, height: int, width: int, key: str
) -> npt.NDArray[np.uint8]:
    """Decodes the masks of objects to (masks, height, width), with the values 0 and 1.

    Args:
        masks: The masks.
        height: Height of their image.
        width: Width of their image.
        key: Their key, for errors.

    Raises:
        RejectedError: One cannot be decoded, or has another size.
        ValueError: They take too much memory: a file of some MB may decode to any size.
    """
    size_bytes = len(masks) * height * width
    if size_bytes > _MAX_MASKS_BYTES:
        raise ValueError(
            f"its {len(masks):,} masks of {width:,}x{height:,} pixels take {size_bytes:,} bytes, "
            f"more than {_MAX_MASKS_BYTES:,}; read {key!r} of the items themselves, and decode the "
            "masks one by one"
        )
    decoded = np.empty((len(masks), height, width), np.uint8)
    for number, mask in enumerate(masks):
        with _decoded(mask, sniff_format(mask)) as opened:
            size = opened.image.size
            if size != (width, height):
                raise RejectedError(
                    Reason.MASK_MISMATCH,
                    f"the mask is {size[0]}x{size[1]}, the image {width}x{height}",
                )
            decoded[number] = np.asarray(opened.image) != 0
    return decoded


def _decoded(data: bytes, file_format: FileFormat | None) -> Any:  # noqa: ANN401
    if file_format is None:
        raise RejectedError(Reason.UNSUPPORTED_IMAGE, "not an image file")
    return open_image(ImageData(data, file_format, _LIMITS)).decode()


def _decode_jpeg(data: bytes, colours: str) -> npt.NDArray[np.uint8] | None:
    """Decodes a JPEG; None where Pillow has to, as for one in CMYK."""
    try:
        height, width, stored, _ = simplejpeg.decode_jpeg_header(data)
        if stored in ("CMYK", "YCCK"):
            return None
        check_pixel_count(width, height, max_pixels=_LIMITS.max_pixels)
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, colours, strict=False)
    except ValueError:
        return None
    return pixels
