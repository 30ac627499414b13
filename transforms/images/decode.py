"""Decodes a file of any format into 8-bit pixels with Pillow, safely."""

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

import msgspec
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
from shardbeam.transforms.core.extras import import_heif, install_command
from shardbeam.transforms.core.memory import MemoryBudget, raise_shortage
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.codecs import pillow_libraries
from shardbeam.transforms.images.cost import DECODED_BYTES, check_tags, icon_bytes, pillow_bytes
from shardbeam.transforms.images.header import (
    FileFormat,
    ImageHeader,
    exif_orientation,
    valid_orientation,
)

# Pillow's classes are called directly: `Image.open` would try other formats, replace the cause of
# an error by "cannot identify", and warn of large images by its own limits.
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

# Exceptions whose message is about Pillow's code, not about the file.
_MISHAPS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    struct.error,
)
# Exceptions of Pillow for files that it cannot open or decode.
_PILLOW_ERRORS = (
    *_MISHAPS,
    Image.DecompressionBombError,
    EOFError,
    ImportError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    ValueError,
    zlib.error,
)
# Words in Pillow's errors that show the reason: it has no exception types for these.
_WORDS = (
    (Reason.DECOMPRESSION_BOMB, ("data too large", "too much memory")),
    (
        Reason.TRUNCATED,
        # The first is Pillow's, the others are libheif's.
        ("truncated", "end of file", "insufficient input", "cannot read full", "size too small"),
    ),
    (
        Reason.UNSUPPORTED_IMAGE,
        ("unsupported", "unknown", "cannot handle", "not supported", "not installed", "illegal"),
    ),
)

_PNG_BIT_DEPTH_OFFSET = 24
# The length and type of the last chunk.
_PNG_END = b"\0\0\0\0IEND"
_PNG_END_CHECKSUM = b"\xaeB`\x82"
# The length of a box, its kind, and its length if the first is 1.
_LARGE_BOX = struct.Struct(">I4sQ")

_UNLIMITED = MemoryBudget()
# A PhotometricInterpretation of TIFF 6.0.
_WHITE_IS_ZERO = 0
# Bits of NewSubfileType in TIFF 6.0: a smaller version of another picture, and a mask.
_NO_PAGE = 0b101

# Pillow's warnings and log messages are about metadata, or repeat an error, and one line for each
# image would flood the logs. They are switched off once, because that is not possible by thread.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)
# libtiff prints its errors to stderr, without the file's name, and Pillow silences only its
# warnings. Where Pillow's libtiff exports no functions, it keeps printing.
with contextlib.suppress(AttributeError, OSError):
    ctypes.CDLL(Image.core.__file__).TIFFSetErrorHandler(None)  # type: ignore[attr-defined]


class ImageData(NamedTuple):
    """The content of an image file, and what decoding it may take.

    Attributes:
        data: The file.
        file_format: The file's format.
        settings: The limits, and how the image is converted.
        memory: The budget that it shares with other images.
        libraries: The names of the libraries that decide the outcome, to be added to.
    """

    data: bytes
    file_format: FileFormat
    settings: ImageConfig
    memory: MemoryBudget = _UNLIMITED
    libraries: set[str] | None = None

    def note_libraries(self, *names: str) -> None:
        """Adds to the names of the libraries that decide the outcome."""
        if self.libraries is not None:
            self.libraries.update(names)


class DecodedImage(NamedTuple):
    """A decoded file.

    Attributes:
        image: The file's first picture, with at most 8 bits a channel.
        header: The file's header.
        upright: Whether the decoder has applied the orientation already.
    """

    image: Image.Image
    header: ImageHeader
    upright: bool


class OpenedImage(NamedTuple):
    """A file whose header was read, and whose pixels are not decoded yet.

    Attributes:
        file: The file.
        image: Pillow's image.
        header: The file's header; its width and height may be 0 before it is decoded.
        size_bytes: The memory for decoding and, if asked for, converting it, file included.
    """

    file: ImageData
    image: ImageFile.ImageFile
    header: ImageHeader
    size_bytes: float

    @contextlib.contextmanager
    def decode(self) -> Iterator[DecodedImage]:
        """Decodes the first picture, and holds its memory until the context ends.

        Raises:
            RejectedError: It cannot be decoded, or Pillow fails inside the context.
        """
        file, image, header = self.file, self.image, self.header
        # Pillow turns the pixels of this format, and of no other, while it loads them.
        upright = file.file_format is FileFormat.TIFF
        # By default it would also turn them by their XMP metadata.
        image.info.pop("xmp", None)
        with pillow_errors_as_rejects(file.file_format), file.memory.take(self.size_bytes):
            image.load()
            if not header.width:
                is_turned = upright and header.is_sideways
                width, height = image.size[::-1] if is_turned else image.size
                header = msgspec.structs.replace(header, width=width, height=height)
            yield DecodedImage(_with_eight_bits(image, file.data), header, upright)


def open_image(
    file: ImageData, *, scanned: ImageHeader | None = None, converts: bool = True
) -> OpenedImage:
    """Reads a file's header, and refuses the file if decoding it would take too much memory.

    Args:
        file: The file; Pillow decodes an icon as it opens it.
        scanned: The header, if it was read already.
        converts: Whether the decoded image is then converted, which takes more memory.

    Raises:
        RejectedError: The header cannot be read, or the image is too large.
    """
    data, file_format, settings, memory, _ = file
    file.note_libraries(*pillow_libraries(file_format))
    decoder = _find_decoder(file_format)
    if file_format is FileFormat.WEBP and int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise RejectedError(Reason.TRUNCATED, "WEBP: the file is shorter than its header says")
    if file_format is FileFormat.HEIC and _boxes_end(data) > len(data):
        # libheif would leave the tiles black that are missing.
        raise RejectedError(Reason.TRUNCATED, "HEIC: the file ends within a box")
    with pillow_errors_as_rejects(file_format):
        if file_format is FileFormat.TIFF:
            check_tags(data)
        if file_format is FileFormat.ICO:
            with memory.take(len(data) + icon_bytes(data, settings=settings)):
                image = decoder(io.BytesIO(data))
        else:
            image = decoder(io.BytesIO(data))
        header = scanned or ImageHeader(width=0, height=0, orientation=_orientation(image))
        size_bytes = pillow_bytes(image, header=header, settings=settings, converts=converts)
    return OpenedImage(file, image, header, len(data) + size_bytes)


def has_more_frames(opened: OpenedImage) -> bool:
    """Whether a file holds more pictures than its first; smaller previews and masks do not count.

    Only the header of the second picture is read, and nothing is decoded.
    """
    data, image = opened.file.data, opened.image
    try:
        # For these two formats, the answer moves an image to its second picture.
        if isinstance(image, GifImagePlugin.GifImageFile):
            return GifImagePlugin.GifImageFile(io.BytesIO(data)).is_animated
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            again = TiffImagePlugin.TiffImageFile(io.BytesIO(data))
            again.seek(1)
            return not int(again.tag_v2.get(ExifTags.Base.NewSubfileType, 0)) & _NO_PAGE
    except _PILLOW_ERRORS:
        # There is no second picture, or none that can be read.
        return False
    return bool(getattr(image, "is_animated", False))


def verify_png(data: bytes) -> None:
    """Checks the checksum of every chunk of a PNG file; decoding checks the pixel data.

    Args:
        data: A file that `scan_png` accepts, with an acceptable size.

    Raises:
        RejectedError: The file is corrupt.
    """
    with pillow_errors_as_rejects(FileFormat.PNG):
        PngImagePlugin.PngImageFile(io.BytesIO(data)).verify()
    # Pillow does not read the last checksum, which is the same in all files.
    end = data.find(_PNG_END)
    if not data.startswith(_PNG_END_CHECKSUM, end + len(_PNG_END)):
        raise RejectedError(Reason.CORRUPT, "PNG: wrong checksum of the IEND chunk")


def _find_decoder(file_format: FileFormat) -> type[ImageFile.ImageFile]:
    """Returns Pillow's class for a format.

    Raises:
        RejectedError: Nothing that is installed decodes the format.
    """
    decoder = _DECODERS.get(file_format)
    if file_format is FileFormat.HEIC:
        decoder = getattr(import_heif(), "HeifImageFile", None)
    if decoder is None:
        advice = advise_on_undecodable(is_heif=file_format is FileFormat.HEIC)
        raise RejectedError(
            Reason.UNSUPPORTED_IMAGE, f"{file_format.name}: cannot be decoded; {advice}"
        )
    return decoder


def _boxes_end(data: bytes) -> int:
    """Returns where the last box of a HEIC file should end (ISO/IEC 14496-12, 4.2).

    What follows the boxes that hold pictures, such as the films that phones append, is not read.
    """
    end = 0
    while end + _LARGE_BOX.size <= len(data):
        size, kind, large_size = _LARGE_BOX.unpack_from(data, end)
        if kind not in (b"ftyp", b"meta", b"mdat", b"moov", b"free"):
            break
        size = {0: len(data) - end, 1: large_size}.get(size, size)
        end += max(size, 8)
    return end


def advise_on_undecodable(*, is_heif: bool) -> str:
    """Says what can be done with files of a format that cannot be decoded."""
    install = f"{install_command('heic')}, or " if is_heif else ""
    return f"{install}convert such files to JPEG or PNG first"


@contextlib.contextmanager
def pillow_errors_as_rejects(file_format: FileFormat) -> Iterator[None]:
    """Turns Pillow's exceptions for a bad file into a reject, with Pillow's words if it has any.

    Raises:
        RejectedError: Pillow failed inside the context.
        OSError: The process is out of memory.
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
    # Pillow turns some of its own mishaps into a SyntaxError with the same words.
    mishap = cause if cause is not None and str(cause) == words else error
    is_clear = words and not isinstance(mishap, _MISHAPS)
    return words.strip() if is_clear else "its content makes no sense"


def _reason(error: Exception) -> Reason:
    # The number of pixels was checked before, so something else in the file needs this much memory.
    if isinstance(error, (Image.DecompressionBombError, MemoryError)):
        return Reason.DECOMPRESSION_BOMB
    words = str(error).lower()
    for reason, signs in _WORDS:
        if any(sign in words for sign in signs):
            return reason
    return Reason.CORRUPT


def _orientation(image: ImageFile.ImageFile) -> int:
    if image.format == "HEIF":
        # The container says how a picture is turned, and libheif has done it. EXIF only repeats it.
        return 1
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return valid_orientation(image.tag_v2.get(ExifTags.Base.Orientation))
    return exif_orientation(image.info.get("exif", b""))


def _with_eight_bits(image: ImageFile.ImageFile, data: bytes) -> Image.Image:
    """Corrects Pillow's mistakes in CMYK and transparent pixels, and reduces pixels to 8 bits."""
    if image.format == "JPEG" and image.mode == "CMYK" and "adobe_transform" not in image.info:
        # Pillow inverts every CMYK file, but only Adobe's are stored inverted.
        return ImageChops.invert(image)
    if image.format == "PNG" and "transparency" in image.info:
        bit_depth = data[_PNG_BIT_DEPTH_OFFSET]
        if image.mode == "L":
            # Pillow has scaled the pixels to 8 bits, but not this value.
            image.info["transparency"] *= 255 // (2**bit_depth - 1)
        elif image.mode == "RGB" and bit_depth == 16:
            _clear_wide_color(image, data)
    if image.mode.startswith("I;16") or (image.format == "PPM" and image.mode == "I"):
        return _high_bits(image)
    if image.mode in ("I", "F"):
        raise RejectedError(
            Reason.UNSUPPORTED_IMAGE,
            f"{image.format}: signed, 32-bit or float samples, which define no black and white",
        )
    return image


def _clear_wide_color(image: ImageFile.ImageFile, data: bytes) -> None:
    """Clears the pixels of the 16-bit colour that a PNG file declares transparent.

    Pillow keeps only the high byte of each sample, which other colours share. So the file is
    decoded once more for the low bytes.
    """
    color = image.info.pop("transparency")
    low = PngImagePlugin.PngImageFile(io.BytesIO(data))
    # This raw mode unpacks the second byte of each sample.
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
        # Pillow does this only for 8 bits.
        gray = ImageOps.invert(gray)
    if transparent is not None:
        opacity = [255] * (1 << 16)
        opacity[transparent] = 0
        gray.putalpha(samples.point(opacity, "L"))
    return gray
