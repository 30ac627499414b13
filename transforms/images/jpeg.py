"""Reads the header of JPEG files as libjpeg does, and finds damage inside their data.

Source: ITU-T T.81, annex B; libjpeg-turbo, `jdmarker.c`.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import simplejpeg

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.memory import raise_shortage
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.cost import DECODED_BYTES, gray_jpeg_bytes
from shardbeam.transforms.images.decode import ImageData, open_image
from shardbeam.transforms.images.header import ImageHeader, exif_orientation
from shardbeam.transforms.images.measures import (
    GrayImage,
    jpeg_scale,
    measure_image,
    measure_pixels,
)

# Bytes before the next marker are junk, which libjpeg skips, too.
_MARKER = re.compile(rb"\xff([\x01-\xfe])")
# Inside a scan, FF is followed by 00 or by a restart marker (D0 to D7). While libjpeg looks for the
# next restart marker, it drops a marker below C0 and reads no length behind it.
_MARKER_AFTER_SCAN = re.compile(rb"\xff([\xc0-\xcf\xd8-\xfe])")
# TEM markers before a restart marker, where every reader accepts them.
_IGNORED_BEFORE_RESTART = re.compile(rb"(\xff\x01)+(?=\xff[\xd0-\xd7])")

_EOI = b"\xff\xd9"
_STUFFED = b"\xff\x00"
_SOS = 0xDA
_APP1 = 0xE1
_COM = 0xFE
_COEFFICIENTS = 64
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_PROGRESSIVE_FRAMES = frozenset({_PROGRESSIVE, 0xCA})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Also lossless, and extended sequential and progressive with arithmetic coding.
_DECODABLE_FRAMES = frozenset({_BASELINE, _EXTENDED, _PROGRESSIVE, 0xC3, 0xC9, 0xCA})
_APPLICATION = frozenset({*range(0xE0, 0xF0), _COM})
_WITHOUT_LENGTH = frozenset(range(0xD0, 0xD8))
# Frames, tables, restart interval and DNL. Any other marker is an error to libjpeg, or to Pillow
# (TEM, 01).
_KNOWN = _FRAMES | _APPLICATION | {0xC4, 0xCC, 0xDB, 0xDC, 0xDD, _SOS}


class _Frame(NamedTuple):
    """A frame header; `samples` counts those of all components, filled up to whole blocks."""

    marker: int
    precision: int
    height: int
    width: int
    components: int
    samples: int


def scan_jpeg(data: bytes, *, complete: bool) -> ImageHeader:
    """Reads the header of a JPEG file.

    Baseline, extended sequential and progressive files with 8 bits and 1 or 3 components are
    storable: every reader decodes them. Only these may be given to TurboJPEG, which can write past
    its buffer on a lossless file.

    Args:
        data: The file, which begins with `FF D8 FF`.
        complete: Whether to look for the end-of-image marker.

    Raises:
        RejectedError: The header or the end is missing, libjpeg would not read the header, or
            no decoder here supports this kind of JPEG.
    """
    frame: _Frame | None = None
    orientation: int | None = None
    end = first_scan_components = 0
    for marker, start, end in _segments(data):
        if marker in _FRAMES:
            if frame is not None:
                raise RejectedError(Reason.CORRUPT, "JPEG: a second frame header")
            frame = _parse_frame(marker, data[start:end])
        elif marker == _SOS:
            # An empty segment is damage, which decoders find.
            first_scan_components = data[start] if start < end else 0
        elif marker == _APP1 and orientation is None and data.startswith(b"Exif\0\0", start):
            orientation = exif_orientation(data[start:end])
    if frame is None:
        raise RejectedError(Reason.CORRUPT, "JPEG: no frame header before the first scan")
    if frame.marker not in _DECODABLE_FRAMES:
        raise RejectedError(Reason.UNSUPPORTED_IMAGE, f"JPEG: frame type 0x{frame.marker:02x}")
    # Inside a scan FF is always followed by 00, so no other bytes there look like the marker.
    if complete and data.rfind(_EOI, end) < 0:
        raise RejectedError(Reason.TRUNCATED, "JPEG: no end-of-image marker")
    several_scans = frame.marker in _PROGRESSIVE_FRAMES or first_scan_components < frame.components
    return ImageHeader(
        width=frame.width,
        height=frame.height,
        orientation=orientation or 1,
        storable=(
            frame.marker <= _PROGRESSIVE and frame.precision == 8 and frame.components in (1, 3)
        ),
        gray=frame.components == 1,
        coefficient_bytes=2 * frame.samples if several_scans else 0,
    )


def count_scans(data: bytes) -> int:
    """Counts the scans of a file that `scan_jpeg` accepts, as libjpeg finds them."""
    return 1 + sum(marker == _SOS for marker, _ in _markers_after_scan(data))


class CheckedFile(NamedTuple):
    """The result of decoding a file.

    Attributes:
        measures: `{measure: value}` of the upright picture, if it was decoded.
        correction: The correction to count if the file is kept: `JPEG_JUNK_KEPT` if its picture is
            whole, else `JPEG_DAMAGE_KEPT`; None if nothing is wrong.
        complaint: What is wrong, in libjpeg's words if libjpeg has found it.
    """

    measures: Mapping[str, Any] = {}  # Never changed.
    correction: Correction | None = None
    complaint: str = ""


def check_jpeg(file: ImageData, *, header: ImageHeader) -> CheckedFile:
    """Decodes a JPEG file strictly.

    When compressed data is damaged, libjpeg warns and fills the gap with something; most decoders
    ignore the warning. libjpeg does not warn of missing scans, so these are found by the headers
    of the others.

    Args:
        file: A file whose header is storable (`scan_jpeg`); TurboJPEG can write past its buffer on
            others.
        header: The file's header.

    Raises:
        RejectedError: It cannot be decoded at all, or would take too much memory.
    """
    found = _decode_strictly(file, header=header)
    missing = missing_scans(file.data) if header.coefficient_bytes else None
    if missing is None or found.correction is Correction.JPEG_DAMAGE_KEPT:
        return found
    return found._replace(correction=Correction.JPEG_DAMAGE_KEPT, complaint=missing)


def _decode_strictly(file: ImageData, *, header: ImageHeader) -> CheckedFile:
    data, _, settings, memory, _ = file
    with memory.take(len(data) + gray_jpeg_bytes(header, settings=settings)):
        found = _decode(data, strict=True, header=header, settings=settings)
        if isinstance(found, CheckedFile):
            return found
        # libjpeg warns only once, and perhaps of something harmless, so decode without that.
        essential = essential_jpeg(data)
        complaint = _decode(essential, strict=True, header=header, settings=settings)
        if isinstance(complaint, CheckedFile):
            return complaint
        for part, strict, correction in (
            *((part, True, Correction.JPEG_JUNK_KEPT) for part in _without_junk(essential)),
            (essential, False, Correction.JPEG_DAMAGE_KEPT),
        ):
            found = _decode(part, strict=strict, header=header, settings=settings)
            if isinstance(found, CheckedFile):
                return found._replace(correction=correction, complaint=complaint)
    # TurboJPEG reported an error, or does not support the file's sampling.
    return check_by_decoding(file, header=header)


def check_by_decoding(file: ImageData, *, header: ImageHeader) -> CheckedFile:
    """Decodes a file with Pillow, and measures the picture.

    Raises:
        RejectedError: It cannot be decoded.
    """
    with open_image(file, scanned=header, converts=False).decode() as decoded:
        return CheckedFile(
            measure_image(decoded.image, settings=file.settings, orientation=header.orientation)
        )


def missing_scans(data: bytes) -> str | None:
    """Describes the data that a JPEG file lacks, for example because it was cut between two scans.

    T.81 allows an encoder to leave out coefficients, or their lowest bits. libjpeg replaces them by
    zeros without a warning, and the picture is blurred or has no colours. Encoders only do that on
    request.

    Args:
        data: A file of several scans that `scan_jpeg` accepts.

    Returns:
        A description of the first component that lacks data; None if nothing is missing.
    """
    # {component: the lowest bit of each coefficient that was sent, in zigzag order; None for none}
    lowest: dict[int, list[int | None]] = {}
    sequential = True
    headers = []
    for marker, start, end in _segments(data):
        if marker in _FRAMES:
            sequential = marker not in _PROGRESSIVE_FRAMES
            lowest = {component: [None] * _COEFFICIENTS for component in data[start + 6 : end : 3]}
        elif marker == _SOS:
            headers.append(data[start:end])
    for marker, start in _markers_after_scan(data):
        if marker == _SOS:
            length = int.from_bytes(data[start : start + 2], "big")
            headers.append(data[start + 2 : start + length])
    for header in headers:
        count = header[0] if header else 0
        if len(header) < 4 + 2 * count:
            # This is damage, which decoders find.
            continue
        # A sequential scan holds everything, whatever its parameters are.
        first, last, bit = (0, 63, 0) if sequential else header[1 + 2 * count :][:3]
        for component in header[1 : 1 + 2 * count : 2]:
            bits = lowest.get(component, [])
            bits[first : last + 1] = [bit & 15] * len(bits[first : last + 1])
    for number, bits in enumerate(lowest.values(), 1):
        absent, coarse = bits.count(None), sum(bool(bit) for bit in bits)
        if absent or coarse:
            return (
                f"scans are missing: of component {number}, {absent} of {_COEFFICIENTS} "
                f"coefficients are not in the file, and {coarse} come without their lowest bits"
            )
    return None


def essential_jpeg(data: bytes) -> bytes:
    """Returns a JPEG file reduced to the parts that its pixels depend on.

    Junk between header segments, application segments and comments are removed. The scan
    parameters that a sequential scan ignores (some cameras leave them zero) are set to the values
    of T.81 B.2.3. All of this is harmless, but libjpeg warns of it, and because it warns only once,
    it would not mention damage that follows.

    Args:
        data: A file that `scan_jpeg` accepts.
    """
    parts = [data[:2]]
    sequential = False
    end = 2
    for marker, start, end in _segments(data):
        if marker in _APPLICATION:
            continue
        sequential = sequential or marker in (_BASELINE, _EXTENDED)
        segment = bytes((0xFF, marker)) + data[start - 2 : end]
        parts.append(segment[:-3] + b"\x00\x3f\x00" if marker == _SOS and sequential else segment)
    parts.append(_IGNORED_BEFORE_RESTART.sub(b"", data[end:]))
    return b"".join(parts)


def _without_junk(data: bytes) -> Iterator[bytes]:
    """Yields a JPEG file without the run of one byte, such as zeros, that cameras put before EOI.

    Inside a scan, the byte FF is written as FF 00. Other bytes are kept, because a damaged file
    mostly has some left over at its end. If the run replaced image data, decoding without it shows
    that data is missing.
    """
    end = max((position for _, position in _markers_after_scan(data)), default=2) - 2
    begin = end
    while data[begin - 2 : begin] == _STUFFED:
        begin -= 2
    if begin < end:
        yield data[:begin] + _EOI
        run = _STUFFED
    else:
        begin = len(data[:end].rstrip(data[end - 1 : end]))
        run = data[begin : begin + 1]
    # The last byte of the data may be the same.
    yield data[:begin] + run + _EOI


def _decode(
    data: bytes, *, strict: bool, header: ImageHeader, settings: ImageConfig
) -> CheckedFile | str:
    """Decodes a file's picture and measures it; returns libjpeg's complaint where it cannot."""
    size = header.width, header.height
    scale = jpeg_scale(*size)
    try:
        # Gray needs no colour conversion, and blocks of a large picture are reduced to their means;
        # but all data of all components is still read, so that the complaints are the same.
        pixels = simplejpeg.decode_jpeg(
            data,
            "GRAY",
            min_width=math.ceil(header.width / scale),
            min_height=math.ceil(header.height / scale),
            strict=strict,
        )
    except ValueError as error:
        return str(error)
    except MemoryError as error:
        raise_shortage(error, size_bytes=DECODED_BYTES)
        raise RejectedError(Reason.DECOMPRESSION_BOMB, "JPEG: MemoryError") from error
    gray = GrayImage(pixels[:, :, 0], size=size, scale=scale, orientation=header.orientation)
    return CheckedFile(measure_pixels(gray, settings=settings))


def _markers_after_scan(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields each marker behind the first scan's header, up to EOI, and the marker's end."""
    position = max(end for _, _, end in _segments(data))
    while found := _MARKER_AFTER_SCAN.search(data, position):
        marker, position = data[found.end() - 1], found.end()
        yield marker, position
        if marker == _EOI[1]:
            return
        position += max(2, int.from_bytes(data[position : position + 2], "big"))


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields marker, start and end of the content of each segment, up to the first scan's."""
    position = 2
    while found := _MARKER.search(data, position):
        marker = data[found.end() - 1]
        position = found.end()
        if marker in _WITHOUT_LENGTH:
            continue
        if marker not in _KNOWN:
            raise RejectedError(
                Reason.CORRUPT, f"JPEG: marker 0x{marker:02x} before the first scan"
            )
        length = int.from_bytes(data[position : position + 2], "big")
        start, position = position + 2, position + length
        if start > len(data) or position > len(data):
            break
        if length < 2:
            if marker not in _APPLICATION:
                raise RejectedError(
                    Reason.CORRUPT, f"JPEG: the segment 0x{marker:02x} has length {length}"
                )
            # Every reader continues behind the length, with junk or the next segment.
            position = start
        yield marker, start, position
        if marker == _SOS:
            return
    raise RejectedError(Reason.TRUNCATED, "JPEG: the file ends in its header")


def _parse_frame(marker: int, content: bytes) -> _Frame:
    if len(content) < 6 or len(content) != 6 + 3 * content[5]:
        raise RejectedError(Reason.CORRUPT, "JPEG: the frame header has a wrong length")
    precision, height, width, components = struct.unpack_from(">BHHB", content)
    if not width or not components:
        raise RejectedError(Reason.CORRUPT, "JPEG: the frame header gives a size without pixels")
    if not height:
        raise RejectedError(Reason.UNSUPPORTED_IMAGE, "JPEG: the height is not in the header (DNL)")
    factors = [(factor >> 4, factor & 15) for factor in content[7::3]]
    wide = max(1, *(across for across, _ in factors))
    high = max(1, *(down for _, down in factors))
    samples = sum(
        64 * -(-width * across // (8 * wide)) * -(-height * down // (8 * high))
        for across, down in factors
    )
    return _Frame(marker, precision, height, width, components, samples)
