"""Decoding a file of any format into 8-bit pixels with Pillow, safely."""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    IcoImagePlugin,
    Image,
    ImageChops,
    ImageFile,
    ImageOps,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.memory import MemoryBudget, raise_shortage
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.cost import DECODED_BYTES, check_icon, check_opened, check_tags
from shardbeam.transforms.images.header import (
    ImageHeader,
    exif_orientation,
    valid_orientation,
)
from shardbeam.transforms.images.sniff import FileFormat

# Pillow's classes are called directly: `Image.open` would try formats that the file is not in,
# hide what was wrong behind "cannot identify", and warn of large images by limits of its own.
_DECODERS: dict[FileFormat, type[ImageFile.ImageFile]] = {
    FileFormat.JPEG: JpegImagePlugin.JpegImageFile,
    FileFormat.PNG: PngImagePlugin.PngImageFile,
    FileFormat.GIF: GifImagePlugin.GifImageFile,
    FileFormat.WEBP: WebPImagePlugin.WebPImageFile,
    FileFormat.BMP: BmpImagePlugin.BmpImageFile,
    FileFormat.TIFF: TiffImagePlugin.TiffImageFile,
    FileFormat.JPEG_2000: Jpeg2KImagePlugin.Jpeg2KImageFile,
    FileFormat.AVIF: AvifImagePlugin.AvifImageFile,
    FileFormat.PNM: PpmImagePlugin.PpmImageFile,
    FileFormat.ICO: IcoImagePlugin.IcoImageFile,
}

# What Pillow raises on files that it cannot make sense of, when opening and loading alike.
_PILLOW_ERRORS = (
    Image.DecompressionBombError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
# Of these, what Python says would concern Pillow's code.
_MISHAPS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    struct.error,
)
# Pillow has no error classes for these: its words tell.
_WORDS = (
    (Reason.DECOMPRESSION_BOMB, ("data too large", "too much memory")),
    (Reason.TRUNCATED, ("truncated",)),
    (
        Reason.UNSUPPORTED_IMAGE,
        ("unsupported", "unknown", "cannot handle", "not supported", "not installed", "illegal"),
    ),
)

_PNG_BIT_DEPTH_OFFSET = 24

_UNLIMITED = MemoryBudget()
# A PhotometricInterpretation of TIFF 6.0.
_WHITE_IS_ZERO = 0

# All that Pillow says of a file beyond its errors concerns metadata, or says again what an error
# says; a line an image would drown the logs. Set once, since neither can be set for one thread.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)
# Nor for libtiff, of which Pillow silences the warnings alone: it prints its errors to stderr,
# without a file's name. Where Pillow's libtiff shows no functions, it goes on with that.
with contextlib.suppress(AttributeError, OSError):
    ctypes.CDLL(Image.core.__file__).TIFFSetErrorHandler(None)  # type: ignore[attr-defined]


class DecodedImage(NamedTuple):
    """A decoded file.

    Attributes:
        image: Its first picture, with at most 8 bits a channel.
        header: What the file says of itself.
        upright: Whether the decoder has applied the orientation already.
    """

    image: Image.Image
    header: ImageHeader
    upright: bool


@contextlib.contextmanager
def decode_image(
    data: bytes,
    *,
    file_format: FileFormat,
    settings: ImageConfig,
    scanned: ImageHeader | None = None,
    converts: bool = True,
    memory: MemoryBudget = _UNLIMITED,
) -> Iterator[DecodedImage]:
    """Decodes the first picture of a file, which takes its memory until the context ends.

    Args:
        data: The file.
        file_format: Its format.
        settings: What is too large to be decoded.
        scanned: What is known of the file already.
        converts: Whether it is converted once it is decoded, which takes more memory.
        memory: What it shares with other images.

    Raises:
        RejectedError: It cannot be decoded, or would take too much; or Pillow gave up inside the
            context.
    """
    # Pillow turns the pixels of this format, and of no other, while loading them.
    upright = file_format is FileFormat.TIFF
    with pillow_errors_as_rejects(file_format):
        image, orientation = _open(data, file_format, settings=settings, memory=memory)
        size_bytes = check_opened(
            image,
            header=scanned or ImageHeader(width=0, height=0, orientation=orientation),
            settings=settings,
            converts=converts,
        )
        # Pillow would also turn them by what XMP says.
        image.info.pop("xmp", None)
        with memory.take(len(data) + size_bytes):
            image.load()
            width, height = image.size
            if upright and orientation >= 5:
                width, height = height, width
            yield DecodedImage(
                image=_with_eight_bits(image, data),
                header=scanned or ImageHeader(width=width, height=height, orientation=orientation),
                upright=upright,
            )


def decoding_cost(
    data: bytes, *, file_format: FileFormat, settings: ImageConfig
) -> tuple[int, float]:
    """Returns how many pixels a file has, and how many bytes it takes to decode and convert it.

    Raises:
        RejectedError: As for `decode_image`, as far as the header tells.
    """
    with pillow_errors_as_rejects(file_format):
        image, orientation = _open(data, file_format, settings=settings, memory=_UNLIMITED)
        header = ImageHeader(width=0, height=0, orientation=orientation)
        size_bytes = check_opened(image, header=header, settings=settings, converts=True)
        return image.width * image.height, len(data) + size_bytes


def _open(
    data: bytes, file_format: FileFormat, *, settings: ImageConfig, memory: MemoryBudget
) -> tuple[ImageFile.ImageFile, int]:
    """Reads a file's header: the image, whose pixels are not decoded, and its orientation."""
    decoder = _DECODERS.get(file_format)
    if decoder is None:
        raise RejectedError(Reason.UNSUPPORTED_IMAGE, f"{file_format.name}: cannot be decoded")
    if file_format is FileFormat.WEBP and int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise RejectedError(Reason.TRUNCATED, "WEBP: the file is shorter than its header says")
    if file_format is FileFormat.TIFF:
        check_tags(data)
    if file_format is FileFormat.ICO:
        with memory.take(len(data) + check_icon(data, settings=settings)):
            image = decoder(io.BytesIO(data))
    else:
        image = decoder(io.BytesIO(data))
    return image, _orientation(image)


@contextlib.contextmanager
def pillow_errors_as_rejects(file_format: FileFormat) -> Iterator[None]:
    """Turns what Pillow raises on a bad file into a reject, with Pillow's words if it has any.

    Raises:
        RejectedError: Pillow gave up inside the context.
        OSError: The process gets no more memory.
    """
    try:
        yield
    except _PILLOW_ERRORS as error:
        raise_shortage(error, size_bytes=DECODED_BYTES)
        name = file_format.name.replace("_", " ")
        detail = f"{name}: cannot be decoded: {_describe(error)}"
        raise RejectedError(_reason(error), detail) from error


def _describe(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    words, cause = str(error), error.__cause__
    # Pillow turns some of its own mishaps into a SyntaxError of the same words.
    mishap = cause if cause is not None and str(cause) == words else error
    return words if words and not isinstance(mishap, _MISHAPS) else "its content makes no sense"


def _reason(error: Exception) -> Reason:
    # The pixels were counted before: what still asks for too much memory hides it elsewhere.
    if isinstance(error, (Image.DecompressionBombError, MemoryError)):
        return Reason.DECOMPRESSION_BOMB
    words = str(error).lower()
    for reason, signs in _WORDS:
        if any(sign in words for sign in signs):
            return reason
    return Reason.CORRUPT


def _orientation(image: ImageFile.ImageFile) -> int:
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return valid_orientation(image.tag_v2.get(ExifTags.Base.Orientation))
    return exif_orientation(image.info.get("exif", b""))


def _with_eight_bits(image: ImageFile.ImageFile, data: bytes) -> Image.Image:
    """Mends what Pillow gets wrong in pixels that are not plain 8-bit ones."""
    if image.format == "JPEG" and image.mode == "CMYK" and "adobe_transform" not in image.info:
        # Pillow takes every CMYK file for one of Adobe's, which are stored inverted.
        return ImageChops.invert(image)
    if image.format == "PNG" and "transparency" in image.info:
        bit_depth = data[_PNG_BIT_DEPTH_OFFSET]
        if image.mode == "L":
            # To the scale of Pillow's pixels.
            image.info["transparency"] *= 255 // (2**bit_depth - 1)
        elif image.mode == "RGB" and bit_depth == 16:
            _clear_wide_color(image, data)
    if image.mode.startswith("I;16") or (image.format == "PPM" and image.mode == "I"):
        return _high_bits(image)
    if image.mode in ("I", "F"):
        raise RejectedError(
            Reason.UNSUPPORTED_IMAGE,
            f"{image.format}: signed, 32-bit or float samples, which have no set black and white",
        )
    return image


def _clear_wide_color(image: ImageFile.ImageFile, data: bytes) -> None:
    """Clears the pixels of the colour of 16 bits a channel that a PNG file declares transparent.

    Of the samples Pillow keeps the high bytes, which other colours share: the low ones are decoded
    once more.
    """
    color = image.info.pop("transparency")
    low = PngImagePlugin.PngImageFile(io.BytesIO(data))
    # What is unpacked of a sample is its second byte.
    low.tile = [tile._replace(args="RGB;16L") for tile in low.tile]
    low.load()
    opacity = Image.new("L", image.size)
    for channel, sample in enumerate(color):
        for pixels, byte in ((image, sample >> 8), (low, sample & 0xFF)):
            differs = [255 * (value != byte) for value in range(256)]
            opacity = ImageChops.lighter(opacity, pixels.getchannel(channel).point(differs))
    image.putalpha(opacity)


def _high_bits(image: ImageFile.ImageFile) -> Image.Image:
    """Reduces gray samples of 12 or 16 bits to their highest 8; Pillow alone would clip them."""
    bits, photometric = 16, None
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        (bits,) = image.tag_v2.get(ExifTags.Base.BitsPerSample, (bits,))
        photometric = image.tag_v2.get(ExifTags.Base.PhotometricInterpretation)
    transparent = image.info.pop("transparency", None)
    samples = image.convert("I")
    gray = samples.point(lambda value: value * (1 / 2 ** (bits - 8))).convert("L")
    if photometric == _WHITE_IS_ZERO:
        # Pillow does this by itself for 8 bits.
        gray = ImageOps.invert(gray)
    if transparent is not None:
        opacity = [255] * (1 << 16)
        opacity[transparent] = 0
        gray.putalpha(samples.point(opacity, "L"))
    return gray
