"""Turns decoded pixels into an image file that every reader understands, perhaps resized."""

from __future__ import annotations

import io
from typing import NamedTuple, TypeAlias

from PIL import ExifTags, Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason

# (width, height) and (left, top, right, bottom) in pixels.
_Size: TypeAlias = tuple[int, int]
_Window: TypeAlias = tuple[int, int, int, int]

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


class Placement(NamedTuple):
    """The part of a picture that is stored, and where.

    Attributes:
        size: Width and height of the stored image.
        crop: The part of the picture that is stored; the rest is left out.
        target: The part of the stored image that it fills; the rest is padding.
    """

    size: _Size
    crop: _Window
    target: _Window

    @property
    def crop_size(self) -> _Size:
        """Width and height of the part in the picture."""
        left, top, right, bottom = self.crop
        return right - left, bottom - top

    @property
    def target_size(self) -> _Size:
        """Width and height of the part in the stored image."""
        left, top, right, bottom = self.target
        return right - left, bottom - top

    def to_fractions(self, x: float, y: float) -> tuple[float, float]:
        """Converts a point in pixels of the picture to fractions of the stored image."""
        (across, down), (width, height) = self.crop_size, self.target_size
        return (
            (self.target[0] + (x - self.crop[0]) * width / across) / self.size[0],
            (self.target[1] + (y - self.crop[1]) * height / down) / self.size[1],
        )


def place(size: _Size, *, settings: ImageConfig) -> Placement | None:
    """Decides how a picture is resized.

    Args:
        size: Its width and height in pixels.
        settings: The settings, of which `max_side` or `resize` counts.

    Returns:
        The placement; None if the size stays as it is.
    """
    resize = settings.resize
    if resize is None:
        if settings.max_side is None or max(size) <= settings.max_side:
            return None
        new_size = shrunk_size(size, max_side=settings.max_side)
        return Placement(new_size, crop=(0, 0, *size), target=(0, 0, *new_size))
    new_size = resize.width, resize.height
    if size == new_size:
        return None
    crop, target = size, new_size
    if resize.fit == "pad":
        target = _fit(size, within=new_size)
    elif resize.fit == "crop":
        crop = _fit(new_size, within=size)
    return Placement(
        new_size, crop=_centered(crop, within=size), target=_centered(target, within=new_size)
    )


def shrunk_size(size: _Size, *, max_side: int) -> _Size:
    """Returns the size whose longer side is `max_side`, with the same aspect ratio."""
    scale = max_side / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _fit(size: _Size, *, within: _Size) -> _Size:
    """Returns the largest size with the aspect ratio of `size` that fits within another."""
    (width, height), (most_width, most_height) = size, within
    if width * most_height >= height * most_width:
        return most_width, max(1, round(most_width * height / width))
    return max(1, round(most_height * width / height)), most_height


def _centered(size: _Size, *, within: _Size) -> _Window:
    left, top = (within[0] - size[0]) // 2, (within[1] - size[1]) // 2
    return left, top, left + size[0], top + size[1]


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
