"""An image with its annotations, on its way into Examples."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import ImageAnnotations, MaskRole
from shardbeam.transforms.examples.boxes import (
    AnnotatedFrame,
    Size,
    orient_pixels,
    turn_between_frames,
)
from shardbeam.transforms.images.check import StoredImage

_Pixel = TypeVar("_Pixel", bound=np.generic)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnotatedImage:
    """An image with its annotations.

    Attributes:
        annotations: What the source says about it.
        image: It as it is stored.
        frame: The frame that its annotations refer to.
        masks: The files that annotate it, by what their pixels mean.
        label_map: The labels' written names and ids.
        corrections: What is changed or left out is counted here.
    """

    annotations: ImageAnnotations
    image: StoredImage
    frame: AnnotatedFrame
    masks: Mapping[MaskRole, bytes]
    label_map: LabelMap
    corrections: Counter[str]

    @property
    def size(self) -> Size:
        """Width and height of the image as it is stored in the Example."""
        return self.image.width, self.image.height

    @property
    def file_size(self) -> Size:
        """Width and height of the image as it is stored in its file."""
        return self.image.file_width, self.image.file_height

    def count(self, correction: Correction, number: int = 1) -> None:
        """Counts what is changed or left out."""
        self.corrections[correction.value] += number

    def turn_mask(self, pixels: npt.NDArray[_Pixel]) -> npt.NDArray[_Pixel]:
        """Turns a mask file's pixels, (height, width), like the image, before any resize.

        Raises:
            RejectedError: They are of another size.
        """
        height, width = pixels.shape
        turn = turn_between_frames(
            (width, height),
            frame=self.frame,
            stored=self.file_size,
            orientation=self.image.orientation,
            upright=self.image.upright,
        )
        if turn is None:
            raise RejectedError(
                Reason.MASK_MISMATCH,
                f"the mask is {width}x{height}, the image {self.image.file_width}x"
                f"{self.image.file_height}",
            )
        return orient_pixels(pixels, orientation=turn)
