"""Images of CIFAR batches: bare pixels.

The format: https://www.cs.toronto.edu/~kriz/cifar.html (binary version): 1,024 red, 1,024 green
and 1,024 blue values of 32 x 32 pixels, row by row.
"""

from __future__ import annotations

import io

from PIL import Image

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.check import StoredImage

SIDE_PX = 32
PIXEL_BYTES = 3 * SIDE_PX * SIDE_PX


def store_cifar(pixels: bytes, *, raw: bool) -> StoredImage:
    """Stores an image of a CIFAR batch.

    Args:
        pixels: Its 3,072 values.
        raw: Whether they are stored as they are, or as a PNG.

    Raises:
        RejectedError: There are more or fewer of them.
    """
    if len(pixels) != PIXEL_BYTES:
        raise RejectedError(
            Reason.TRUNCATED, f"expected {PIXEL_BYTES} pixel values, got {len(pixels)}"
        )
    return StoredImage(
        data=pixels if raw else _png(pixels),
        format="raw" if raw else "png",
        width=SIDE_PX,
        height=SIDE_PX,
        file_width=SIDE_PX,
        file_height=SIDE_PX,
        orientation=1,
        upright=True,
        corrections=() if raw else (Correction.IMAGE_CONVERTED,),
    )


def _png(pixels: bytes) -> bytes:
    plane = SIDE_PX * SIDE_PX
    channels = [
        Image.frombytes("L", (SIDE_PX, SIDE_PX), pixels[start : start + plane])
        for start in range(0, PIXEL_BYTES, plane)
    ]
    buffer = io.BytesIO()
    Image.merge("RGB", channels).save(buffer, "PNG")
    return buffer.getvalue()
