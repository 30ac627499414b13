"""The memory and time that decoding an image takes, estimated from its header, and their limits.

Nothing else estimates memory: `pillow_bytes`, `icon_bytes` and `gray_jpeg_bytes` are for the three
ways to decode an image, `mask_bytes` is for the files that annotate it. The figures are the peak of
resident memory with Pillow 12 and simplejpeg 1.9; `python -m tests.images.decoder_costs` measures
them, and docs/internals/scale.md has the table.
"""

from __future__ import annotations

import io
import math
import struct

from PIL import IcoImagePlugin, ImageFile, TiffImagePlugin
from PIL.ExifTags import Base

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.convert import Placement, place
from shardbeam.transforms.images.header import ImageHeader, check_pixel_count
from shardbeam.transforms.images.measures import jpeg_scale
from shardbeam.transforms.images.png import scan_png

_BYTES_PER_MB = 1_000_000

# Memory that decoding an image may take by default.
DECODED_BYTES = ImageConfig().max_decoded_mb * _BYTES_PER_MB

# Bytes of a pixel in Pillow's memory; 4 in all other modes.
_PIXEL_BYTES = {"1": 1, "L": 1, "P": 1}
# Bytes of a gray pixel with 16 bits while it is reduced to 8.
_WIDE_PIXEL_BYTES = 11
# {format: bytes a pixel that decoders need beyond the pixels, while they decode and until the image
# is freed}. AVIF's are for 10 and 12 bits a channel: a file may have these although its header
# says 8.
_DECODER_BYTES = {"WEBP": (12, 8), "AVIF": (12, 8), "HEIF": (0, 4)}
# The same for decoders of which each channel of a pixel takes as much; 12 bits of HEIC.
_DECODER_BYTES_PER_BAND = {"JPEG2000": 5, "HEIF": 4}
# Bytes of a mask file's pixel while it becomes a number: 28 for Pascal VOC's colours, 16 for
# segments, 10 or less for one channel.
_MASK_PIXEL_BYTES = 28

# Any JPEG may have this many scans, and more if it has few pixels. A scan visits all blocks, which
# takes about 0.45 ns a pixel, even if the scan itself has only 20 bytes.
_MANY_SCANS = 12
_MAX_SCANNED_PIXELS = 2_000_000_000

_UNCOMPRESSED = 1

_ICON_ENTRY = struct.Struct("<12xI")
_PNG_SIZE = struct.Struct(">8s8xII")
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_BITMAP_SIZE = struct.Struct("<4xii")
_CORE_BITMAP_SIZE = struct.Struct("<4xHH")
_CORE_BITMAP_HEADER = (12).to_bytes(4, "little")

_BIG_TIFF = 43
_SIZE_TAGS = frozenset(
    {
        *(Base.ImageWidth, Base.ImageLength, Base.BitsPerSample, Base.Compression),
        *(Base.SamplesPerPixel, Base.RowsPerStrip, Base.TileWidth, Base.TileLength),
    }
)


def gray_jpeg_bytes(header: ImageHeader, *, settings: ImageConfig) -> int:
    """Returns the bytes that TurboJPEG takes to check a JPEG file: in gray, at its hash's scale.

    Raises:
        RejectedError: In full size, it would take more than `max_decoded_mb`.
    """
    width, height = header.width, header.height
    _check_limit(width * height + header.coefficient_bytes, size=(width, height), settings=settings)
    scale = jpeg_scale(width, height)
    return math.ceil(width / scale) * math.ceil(height / scale) + header.coefficient_bytes


def mask_bytes(data: bytes, *, pixels: int) -> int:
    """Returns the bytes that a mask file takes while it is decoded.

    Args:
        data: The file.
        pixels: The most pixels that it can have.
    """
    return len(data) + _MASK_PIXEL_BYTES * pixels


def check_scans(scans: int, *, header: ImageHeader) -> None:
    """Refuses a JPEG file with so many scans that decoding takes too long.

    Raises:
        RejectedError: The scans visit too many pixels in all.
    """
    pixels = header.width * header.height
    if scans > _MANY_SCANS and scans * pixels > _MAX_SCANNED_PIXELS:
        raise RejectedError(
            Reason.DECODE_BOMB,
            f"JPEG: {scans} scans of {header.width} x {header.height} pixels; at this size at "
            f"most {max(_MANY_SCANS, _MAX_SCANNED_PIXELS // pixels)} are decoded",
        )


def pillow_bytes(
    image: ImageFile.ImageFile,
    *,
    header: ImageHeader,
    settings: ImageConfig,
    converts: bool,
) -> float:
    """Returns the bytes that Pillow takes to decode an image that it has opened.

    Args:
        image: The opened file.
        header: The file's header.
        settings: The limits, and how the image is converted.
        converts: Whether the decoded image is then converted.

    Raises:
        RejectedError: It has more pixels than `max_pixels`, or takes more than `max_decoded_mb`.
    """
    pixels = image.width * image.height
    check_pixel_count(*image.size, max_pixels=settings.max_pixels)
    stored = _PIXEL_BYTES.get(image.mode, 4)
    decoder, kept = _DECODER_BYTES.get(image.format or "", (0, 0))
    if image.mode.startswith("I;16"):
        decoder = _WIDE_PIXEL_BYTES - stored
    by_band = _DECODER_BYTES_PER_BAND.get(image.format or "", 0)
    decoder = max(decoder, by_band * len(image.getbands()))
    size_bytes: float = pixels * (stored + decoder) + header.coefficient_bytes
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        size_bytes += _check_tiles(image, settings=settings)
    if converts:
        # Each step of conversion makes a copy, and resizing more.
        placement = place(_upright_size(image, header=header, settings=settings), settings=settings)
        copies, resized = 1, 0
        if placement is not None:
            copies, resized = 2, _resizing_pixels(placement, pixels=pixels)
        elif image.has_transparency_data or header.orientation != 1:
            copies = 2
        copy = 1 if header.storable and header.gray else 4
        size_bytes = max(size_bytes, pixels * (stored + kept) + (copies * pixels + resized) * copy)
    _check_limit(size_bytes, size=image.size, settings=settings)
    return size_bytes


def _upright_size(
    image: ImageFile.ImageFile, *, header: ImageHeader, settings: ImageConfig
) -> tuple[int, int]:
    """Returns the size of a picture before it is resized."""
    is_turned = settings.orientation == "apply" and header.is_sideways
    return (image.height, image.width) if is_turned else image.size


def _resizing_pixels(placement: Placement, *, pixels: int) -> int:
    """Returns the pixels that resizing holds in memory, beside the `pixels` of the picture."""
    (crop_width, crop_height), (width, height) = placement.crop_size, placement.target_size
    if width <= crop_width and height <= crop_height and placement.size == (width, height):
        return pixels
    # Pillow resizes rows first and then columns; the result may be laid onto a canvas.
    return width * crop_height + width * height + placement.size[0] * placement.size[1]


def icon_bytes(data: bytes, *, settings: ImageConfig) -> int:
    """Returns the bytes that the largest image of an icon file takes.

    Pillow decodes that image as it opens the file.

    Raises:
        RejectedError: An image of the file has more pixels than `max_pixels` or takes more than
            `max_decoded_mb`, or the header of a PNG image makes no sense.
    """
    largest_bytes = 0
    count = int.from_bytes(data[4:6], "little")
    for entry in range(6, min(6 + 16 * count, len(data) - _ICON_ENTRY.size + 1), 16):
        (start,) = _ICON_ENTRY.unpack_from(data, entry)
        width, height = _icon_image_size(data[start : start + _PNG_SIZE.size])
        size_bytes = 4 * width * height
        check_pixel_count(width, height, max_pixels=settings.max_pixels)
        _check_limit(size_bytes, size=(width, height), settings=settings)
        largest_bytes = max(largest_bytes, size_bytes)
    decoded = IcoImagePlugin.IcoFile(io.BytesIO(data)).entry[0].offset
    if data.startswith(_PNG_SIGNATURE, decoded):
        scan_png(data[decoded:], complete=False)
    return largest_bytes


def check_tags(data: bytes) -> None:
    """Refuses a TIFF file whose size libtiff, which decodes it, may read differently from Pillow.

    If a tag is repeated, libtiff uses the first value and Pillow, on which the limits rely, the
    last. Source: TIFF 6.0, section 2; the BigTIFF design.

    Raises:
        RejectedError: A tag that decides how much is decoded is repeated in the first directory,
            or the file is a BigTIFF that Pillow reads as a classic TIFF.
    """
    if data.startswith(b"MM\0+"):
        raise RejectedError(Reason.UNSUPPORTED_IMAGE, "TIFF: a big-endian BigTIFF")
    order = "<" if data.startswith(b"II") else ">"
    header, number, entry_bytes = "4xI", "H", 12
    if data[2] == _BIG_TIFF:
        header, number, entry_bytes = "8xQ", "Q", 20
    seen: set[int] = set()
    try:
        (directory,) = struct.unpack_from(order + header, data)
        (count,) = struct.unpack_from(order + number, data, directory)
        first = directory + struct.calcsize(order + number)
        for entry in range(first, min(first + entry_bytes * count, len(data)), entry_bytes):
            (tag,) = struct.unpack_from(f"{order}H", data, entry)
            if tag in seen:
                raise RejectedError(Reason.CORRUPT, f"TIFF: the tag {Base(tag).name} is repeated")
            if tag in _SIZE_TAGS:
                seen.add(tag)
    except (struct.error, OverflowError):
        pass  # The directory is incomplete, which Pillow reports.


def _check_limit(size_bytes: float, *, size: tuple[int, int], settings: ImageConfig) -> None:
    if size_bytes > settings.max_decoded_mb * _BYTES_PER_MB:
        raise RejectedError(
            Reason.DECODE_BOMB,
            f"decoding its {size[0]} x {size[1]} pixels takes {size_bytes / _BYTES_PER_MB:.0f} MB, "
            f"more than max_decoded_mb, {settings.max_decoded_mb}",
        )


def _icon_image_size(start: bytes) -> tuple[int, int]:
    """Returns the size of an icon's image from its first 24 bytes; the file may end before."""
    start = start.ljust(_PNG_SIZE.size, b"\0")
    signature, width, height = _PNG_SIZE.unpack(start)
    if signature == _PNG_SIGNATURE:
        return width, height
    layout = _CORE_BITMAP_SIZE if start.startswith(_CORE_BITMAP_HEADER) else _BITMAP_SIZE
    width, height = map(abs, layout.unpack_from(start))
    # A bitmap's height includes its mask.
    return width, height // 2


def _check_tiles(image: TiffImagePlugin.TiffImageFile, *, settings: ImageConfig) -> float:
    """Returns the bytes of one tile or strip, which libtiff decompresses at a time.

    Tiles may reach over the border, and have many more pixels than the image.
    """
    tags = image.tag_v2
    # The sides as stored in the file; the decoded image may be turned.
    width, height = (_first(tags.get(tag), 1) for tag in (Base.ImageWidth, Base.ImageLength))
    tile_width = _first(tags.get(Base.TileWidth), width)
    tile_height = _first(tags.get(Base.TileLength), 0)
    if tile_height:
        columns, rows = -(-width // tile_width), -(-height // tile_height)
        check_pixel_count(columns * tile_width, rows * tile_height, max_pixels=settings.max_pixels)
    else:
        tile_height = min(height, _first(tags.get(Base.RowsPerStrip), height))
    if tags.get(Base.Compression, _UNCOMPRESSED) == _UNCOMPRESSED:
        return 0
    bits = _first(tags.get(Base.BitsPerSample), 1) * _first(tags.get(Base.SamplesPerPixel), 1)
    return tile_width * tile_height * bits / 8


def _first(value: object, default: int) -> int:
    """Returns a tag's first number if it is above 0, or the default."""
    if isinstance(value, tuple) and value:
        value = value[0]
    return value if isinstance(value, int) and value > 0 else default
