"""Turns decoded pixels into an image file that every reader understands."""

from __future__ import annotations

import io

from PIL import ExifTags, Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.placement import Placement, shrunk_size

# {EXIF orientation: the method that turns the stored pixels upright} (Exif 2.32, 4.6.4).
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# The bytes of an ICC profile that name its colour space, and Pillow's mode for each name.
_PROFILE_COLOURS = slice(16, 20)
_PROFILE_MODES = {b"RGB ": "RGB", b"GRAY": "L"}

# libjpeg's limit for a side, in pixels.
_JPEG_MAX_SIDE = 65_500


def apply_orientation(image: Image.Image, orientation: int) -> Image.Image:
    """Turns stored pixels upright."""
    method = _UPRIGHT.get(orientation)
    return image if method is None else image.transpose(method)


def to_rgb(image: Image.Image, *, background: str) -> Image.Image:
    """Returns an RGB image, laid over `background` (`#rrggbb`) where it is transparent."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    pixels = image.convert("RGBA")
    canvas = Image.new("RGB", image.size, background)
    canvas.paste(pixels, mask=pixels)
    return canvas


def shrink(image: Image.Image, *, max_side: int) -> Image.Image:
    """Resizes an image so that its longer side is `max_side`."""
    size = shrunk_size(image.size, max_side=max_side)
    return image.resize(size, Image.Resampling.LANCZOS)


def resize(image: Image.Image, *, placement: Placement, background: str) -> Image.Image:
    """Resizes the part of an image that is stored, and adds borders in `background` (`#rrggbb`)."""
    resized = image.resize(placement.target_size, Image.Resampling.LANCZOS, box=placement.crop)
    if resized.size == placement.size:
        return resized
    canvas = Image.new(image.mode, placement.size, background)
    canvas.paste(resized, placement.target)
    return canvas


def encode(
    image: Image.Image,
    *,
    settings: ImageConfig,
    orientation: int,
    icc_profile: bytes | None,
) -> bytes:
    """Encodes an image with the given settings.

    Only metadata that give the pixels their meaning are written.

    Args:
        image: Gray (`L`) or `RGB` pixels.
        settings: Encoding and quality. JPEG keeps the full colour resolution (4:4:4).
        orientation: Written as EXIF if it is not 1.
        icc_profile: The source's ICC profile; written if it fits the image's colours.

    Raises:
        RejectedError: JPEG cannot hold an image of this size.
    """
    options: dict[str, bytes | None] = {"icc_profile": None}
    if icc_profile and _PROFILE_MODES.get(icc_profile[_PROFILE_COLOURS]) == image.mode:
        options["icc_profile"] = icc_profile
    if orientation != 1:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        options["exif"] = exif.tobytes()
    # Otherwise Pillow would write comments, the resolution and a transparent colour.
    image.info = {}
    buffer = io.BytesIO()
    if settings.encoding == "png":
        image.save(buffer, "PNG", **options)
    elif max(image.size) <= _JPEG_MAX_SIDE:
        image.save(buffer, "JPEG", quality=settings.quality, subsampling="4:4:4", **options)
    else:
        raise RejectedError(
            Reason.UNSUPPORTED_IMAGE,
            f"a JPEG image has at most {_JPEG_MAX_SIDE} pixels a side, this one has "
            f"{image.width} x {image.height}; set max_side, or encoding to png",
        )
    return buffer.getvalue()
