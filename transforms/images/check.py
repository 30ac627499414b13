"""Checks an image file, and converts it if its own bytes cannot be stored."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.corrections import Change
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.codecs import TURBO_JPEG, pillow_libraries
from shardbeam.transforms.images.convert import (
    Placement,
    apply_orientation,
    encode,
    place,
    resize,
    to_rgb,
)
from shardbeam.transforms.images.cost import check_scans
from shardbeam.transforms.images.decode import (
    ImageData,
    has_more_frames,
    open_image,
    verify_png,
)
from shardbeam.transforms.images.header import (
    FileFormat,
    ImageHeader,
    check_pixel_count,
    claimed_format,
    sniff_format,
)
from shardbeam.transforms.images.jpeg import (
    CheckedFile,
    check_by_decoding,
    check_jpeg,
    count_scans,
    scan_jpeg,
)
from shardbeam.transforms.images.measures import measure_image
from shardbeam.transforms.images.png import scan_png
from shardbeam.transforms.storage.image_bytes import LFS_POINTER, is_lfs_pointer

_UNLIMITED = MemoryBudget()
_AS_IT_IS = ImageConfig()

CIFAR_SIDE_PX = 32
CIFAR_BYTES = 3 * CIFAR_SIDE_PX * CIFAR_SIDE_PX


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image as it is stored in an Example.

    Attributes:
        data: The encoded image; the file itself if it can be stored unchanged.
        format: The format of `data`, `jpeg` or `png`.
        width: Width of `data` in pixels.
        height: Height of `data` in pixels.
        file_width: Width in pixels as stored in the source file, before any orientation.
        file_height: Height in pixels as stored in the source file, before any orientation.
        orientation: The source file's EXIF orientation, 1 to 8; 1 where it has none.
        upright: Whether the pixels of `data` show the picture upright.
        corrections: Changes that were made, and faults that were kept, each with the values before
            and after it.
        channels: Values of a pixel of `data`: 1 or 3.
        measures: `{measure: value}` of the upright picture (`images.measures`); empty where
            pictures are not decoded.
        placement: How the picture was cropped or padded; None if all of it fills the image.
    """

    data: bytes
    format: str
    width: int
    height: int
    file_width: int
    file_height: int
    orientation: int = 1
    upright: bool = True
    corrections: Mapping[Correction, Change] = {}
    channels: int = 3
    measures: Mapping[str, Any] = {}
    placement: Placement | None = None


def check_image(
    data: bytes,
    *,
    name: str,
    settings: ImageConfig,
    memory: MemoryBudget = _UNLIMITED,
    libraries: set[str] | None = None,
) -> StoredImage:
    """Checks an image file, and converts it if necessary.

    A file is stored unchanged if it is upright, within `max_side` or of the size `resize`, and of a
    kind that every reader understands: a baseline, extended sequential or progressive JPEG with 8
    bits and 1 or 3 components, or a gray or RGB PNG with up to 8 bits, without transparency and
    animation.

    The first picture of any other file is decoded and encoded again: upright, opaque, within
    `max_side` or of the size `resize`, in RGB, or in gray if only its orientation or size kept a
    gray file from being stored. With `orientation: keep` the new file keeps the EXIF orientation
    instead, except for TIFF files, where it is part of decoding.

    Thread-safe. Equal input has the same outcome under the same versions of `libraries`.

    Args:
        data: The file's content.
        name: The file's name or key, for its extension.
        settings: The checks, and the encoding of converted images.
        memory: The budget that decoding shares with other images.
        libraries: The names of the libraries that decide the outcome are added to it, also if the
            image is rejected.

    Raises:
        RejectedError: The image cannot be used.
    """
    if not data:
        raise RejectedError(Reason.ZERO_BYTE, "the file is empty")
    file_format = sniff_format(data)
    if file_format is None:
        if is_lfs_pointer(data):
            raise RejectedError(Reason.NOT_AN_IMAGE, LFS_POINTER)
        # It shows no bytes: a link may lead to any file of the user.
        raise RejectedError(Reason.NOT_AN_IMAGE, "it begins like no known image format")
    corrections = _check_name(name, file_format, settings=settings)
    file = ImageData(data, file_format, settings, memory, libraries)
    header = _scan(file)
    measures: Mapping[str, Any] = {}
    if header is not None:
        kept = _is_kept(header, settings=settings)
        if header.coefficient_bytes and (settings.verify == "decode" or not kept):
            check_scans(count_scans(data), header=header)
        if settings.verify == "decode":
            found = _verify(file, header=header, kept=kept)
            measures = found.measures
            if found.correction is not None:
                corrections[found.correction] = found.complaint, None
        if kept:
            return StoredImage(
                data=data,
                format=file_format.value,
                width=header.width,
                height=header.height,
                file_width=header.width,
                file_height=header.height,
                orientation=header.orientation,
                upright=header.orientation == 1,
                corrections=corrections,
                channels=1 if header.gray else 3,
                measures=measures,
            )
    return _convert(file, scanned=header, corrections=corrections)


def cifar_pixels(data: bytes) -> npt.NDArray[np.uint8]:
    """Returns the pixels of an image of a CIFAR batch, (32, 32, 3), from its `CIFAR_BYTES` bytes.

    They are stored plane by plane: red, green, blue.
    """
    planes = np.frombuffer(data, np.uint8).reshape(3, CIFAR_SIDE_PX, CIFAR_SIDE_PX)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


def store_cifar(
    pixels: bytes,
    *,
    raw: bool,
    settings: ImageConfig = _AS_IT_IS,
    libraries: set[str] | None = None,
) -> StoredImage:
    """Stores an image of a CIFAR batch, which consists of bare pixels.

    The format (https://www.cs.toronto.edu/~kriz/cifar.html, binary version): 1,024 red, 1,024
    green and 1,024 blue values of 32 x 32 pixels, row by row.

    Args:
        pixels: The 3,072 values.
        raw: Whether to store the values unchanged, and not as a PNG.
        settings: The size of a PNG.
        libraries: As for `check_image`.

    Raises:
        RejectedError: There are more or fewer values.
    """
    if len(pixels) != CIFAR_BYTES:
        raise RejectedError(
            Reason.TRUNCATED, f"expected {CIFAR_BYTES} pixel values, got {len(pixels)}"
        )
    if libraries is not None:
        libraries.update(pillow_libraries(FileFormat.PNG))
    image = Image.fromarray(cifar_pixels(pixels))
    corrections: dict[Correction, Change] = {}
    placement = None
    if not raw:
        corrections[Correction.IMAGE_CONVERTED] = None, "png"
        image, placement = _resize(image, settings=settings, corrections=corrections)
    png = io.BytesIO()
    if not raw:
        image.save(png, "PNG")
    return StoredImage(
        data=pixels if raw else png.getvalue(),
        format="raw" if raw else "png",
        width=image.width,
        height=image.height,
        file_width=CIFAR_SIDE_PX,
        file_height=CIFAR_SIDE_PX,
        corrections=corrections,
        measures=measure_image(image, settings=settings),
        placement=placement,
    )


def measure_stored(
    data: bytes, *, image_format: str, settings: ImageConfig, memory: MemoryBudget = _UNLIMITED
) -> Mapping[str, Any]:
    """Computes `StoredImage.measures` again; exactly, unless the image was converted to JPEG.

    Args:
        data: `StoredImage.data`.
        image_format: `StoredImage.format`.
        settings: The settings that the image was stored with, of which `verify` is `decode`.
        memory: The budget that decoding shares with other images.

    Raises:
        RejectedError: It cannot be decoded.
    """
    if image_format == "raw":
        return store_cifar(data, raw=True, settings=settings).measures
    kept = msgspec.structs.replace(
        settings, damaged="keep", orientation="keep", max_side=None, resize=None
    )
    return check_image(data, name="", settings=kept, memory=memory).measures


def _check_name(
    name: str, file_format: FileFormat, *, settings: ImageConfig
) -> dict[Correction, Change]:
    claimed = claimed_format(name)
    if settings.verify == "none" or claimed is None or claimed is file_format:
        return {}
    if settings.wrong_extension == "keep":
        return {Correction.WRONG_EXTENSION_KEPT: (claimed.value, file_format.value)}
    raise RejectedError(
        Reason.WRONG_EXTENSION,
        f"the name says {claimed.value}, the content is {file_format.value}",
    )


def _scan(file: ImageData) -> ImageHeader | None:
    """Reads the header of a JPEG or PNG file; None for formats that are always converted."""
    data, file_format, settings, _, _ = file
    complete = settings.verify != "none"
    if file_format is FileFormat.JPEG:
        header = scan_jpeg(data, complete=complete)
    elif file_format is FileFormat.PNG:
        header = scan_png(data, complete=complete)
    else:
        return None
    check_pixel_count(header.width, header.height, max_pixels=settings.max_pixels)
    return header


def _is_kept(header: ImageHeader, *, settings: ImageConfig) -> bool:
    """Returns whether a file is stored unchanged."""
    return (
        header.storable
        and (header.orientation == 1 or settings.orientation == "keep")
        and place((header.width, header.height), settings=settings) is None
    )


def _verify(file: ImageData, *, header: ImageHeader, kept: bool) -> CheckedFile:
    """Checks a JPEG or PNG file by decoding it.

    A PNG file that is not kept, and a JPEG file that is not storable, are decoded only when they
    are converted.
    """
    if file.file_format is FileFormat.PNG:
        file.note_libraries(*pillow_libraries(FileFormat.PNG))
        verify_png(file.data)
        return check_by_decoding(file, header=header) if kept else CheckedFile()
    if not header.storable:
        return CheckedFile()
    file.note_libraries(TURBO_JPEG)
    found = check_jpeg(file, header=header)
    if found.correction is Correction.JPEG_DAMAGE_KEPT and file.settings.damaged == "reject":
        raise RejectedError(Reason.JPEG_DAMAGED, found.complaint)
    return found


def _convert(
    file: ImageData, *, scanned: ImageHeader | None, corrections: dict[Correction, Change]
) -> StoredImage:
    settings = file.settings
    file.note_libraries(*pillow_libraries(FileFormat(settings.encoding)))
    opened = open_image(file, scanned=scanned)
    with opened.decode() as decoded:
        header = decoded.header
        upright = decoded.upright or header.orientation == 1
        if header.storable and header.gray:
            image = decoded.image.convert("L")
        else:
            image = to_rgb(decoded.image, background=settings.background)
        if not header.storable or file.file_format.value != settings.encoding:
            corrections[Correction.IMAGE_CONVERTED] = file.file_format.value, settings.encoding
        if has_more_frames(opened):
            corrections[Correction.FIRST_FRAME_KEPT] = "several frames", "the first"
        if not upright and settings.orientation == "apply":
            image = apply_orientation(image, header.orientation)
            upright = True
        if upright and header.orientation != 1:
            corrections[Correction.ORIENTATION_APPLIED] = header.orientation, 1
        image, placement = _resize(image, settings=settings, corrections=corrections)
        turn = 1 if upright else header.orientation
        measures = (
            measure_image(image, settings=settings, orientation=turn)
            if settings.verify == "decode"
            else {}
        )
        encoded = encode(
            image,
            settings=settings,
            orientation=turn,
            icc_profile=decoded.image.info.get("icc_profile"),
        )
    return StoredImage(
        data=encoded,
        format=settings.encoding,
        width=image.width,
        height=image.height,
        file_width=header.width,
        file_height=header.height,
        orientation=header.orientation,
        upright=upright,
        corrections=corrections,
        channels=1 if image.mode == "L" else 3,
        measures=measures,
        placement=placement,
    )


def _resize(
    image: Image.Image,
    *,
    settings: ImageConfig,
    corrections: dict[Correction, Change],
) -> tuple[Image.Image, Placement | None]:
    """Resizes a picture; returns it with `StoredImage.placement`."""
    placement = place(image.size, settings=settings)
    if placement is None:
        return image, None
    corrections[Correction.IMAGE_RESIZED] = image.size, placement.size
    is_whole = placement.crop_size == image.size and placement.target_size == placement.size
    resized = resize(image, placement=placement, background=settings.background)
    return resized, None if is_whole else placement
