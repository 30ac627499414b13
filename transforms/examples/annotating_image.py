"""How the pixels of an image that annotates another one get into the written frame."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.examples.boxes import AnnotatedFrame, orient_pixels, turn_between_frames
from shardbeam.transforms.images.check import StoredImage

_Pixel = TypeVar("_Pixel", bound=np.generic)


def pixels_in_written_frame(
    pixels: npt.NDArray[_Pixel], *, frame: AnnotatedFrame, image: StoredImage
) -> npt.NDArray[_Pixel]:
    """Turns an annotating image like the image that it annotates, before any resize.

    Args:
        pixels: Its pixels, (height, width).
        frame: The frame that the other annotations refer to.
        image: The annotated image as it is stored.

    Raises:
        RejectedError: It is of another size.
    """
    height, width = pixels.shape
    stored = (image.file_width, image.file_height)
    turn = turn_between_frames(
        (width, height),
        frame=frame,
        stored=stored,
        orientation=image.orientation,
        upright=image.upright,
    )
    if turn is None:
        raise RejectedError(
            Reason.MASK_MISMATCH,
            f"the mask is {width}x{height}, the image {stored[0]}x{stored[1]}",
        )
    return orient_pixels(pixels, orientation=turn)
