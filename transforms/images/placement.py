"""Where a picture's pixels go if the image is stored with another size."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from shardbeam.configs.schema import ImageConfig

# (width, height) and (left, top, right, bottom) in pixels.
_Size: TypeAlias = tuple[int, int]
_Window: TypeAlias = tuple[int, int, int, int]


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
