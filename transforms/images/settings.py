"""What a user decides about checking and storing images."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How images are checked and stored.

    Attributes:
        verify: `decode` decodes every image in full; `header` reads its header and looks for
            its end; `none` only reads what is needed to describe it.
        damaged: Whether a JPEG whose data is damaged is rejected, or kept and counted.
        wrong_extension: Whether an image whose name says another format is rejected, or kept
            and counted.
        encoding: What images are re-encoded as where their own bytes cannot be stored.
        quality: JPEG quality of re-encoded images, 1 to 100.
        max_side: Images with a longer side than this (pixels) are resized to it.
        orientation: Whether an EXIF orientation is applied to the pixels, or left to the reader.
        background: Colour (`#rrggbb`) behind transparent pixels.
        max_pixels: Images with more pixels are rejected as decompression bombs.
    """

    verify: Literal["decode", "header", "none"] = "decode"
    damaged: Literal["reject", "keep"] = "reject"
    wrong_extension: Literal["reject", "keep"] = "reject"
    encoding: Literal["jpeg", "png"] = "jpeg"
    quality: int = 95
    max_side: int | None = None
    orientation: Literal["apply", "keep"] = "apply"
    background: str = "#ffffff"
    max_pixels: int = 178_956_970
