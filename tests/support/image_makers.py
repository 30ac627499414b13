"""Makes image files for the tests, byte by byte if no encoder would make them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]


def photograph(*, width: int = 64, height: int = 48, seed: int = 0) -> Image.Image:
    """A smooth RGB picture without symmetries."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, size=(5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def save(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def plain_jpeg(size: tuple[int, int] = (32, 24)) -> bytes:
    return save(Image.new("RGB", size, (10, 200, 30)), "JPEG")


def jpegs(*paths: str) -> dict[str, bytes]:
    """Plain JPEG files."""
    return dict.fromkeys(paths, plain_jpeg())


def pixels(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)))


def exif(orientation: int, *, order: str = "<", kind: int = 3) -> bytes:
    """A TIFF block with one tag, the orientation, as SHORT (3) or LONG (4)."""
    mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
    value = struct.pack(f"{order}{'HH' if kind == 3 else 'I'}", *([orientation, 0][: 5 - kind]))
    return mark + struct.pack(f"{order}IHHHI", 8, 1, 0x0112, kind, 1) + value + bytes(4)


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def after_soi(jpeg: bytes, inserted: bytes) -> bytes:
    return jpeg[:2] + inserted + jpeg[2:]


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    return after_soi(jpeg, segment(0xE1, b"Exif\0\0" + exif(orientation)))


def without_segment(jpeg: bytes, marker: int) -> bytes:
    start = jpeg.index(bytes((0xFF, marker)))
    (length,) = struct.unpack_from(">H", jpeg, start + 2)
    return jpeg[:start] + jpeg[start + 2 + length :]


def gray_jpeg_with_sampling(factors: Sequence[int]) -> bytes:
    """A mid-gray 32 x 32 JPEG whose three components have any sampling factors.

    Each factor is `horizontal << 4 | vertical`. With the tables of T.81, annex K, a block
    without any difference to the one before is `00 1010` in luma and `00 00` in chroma.
    """
    image = Image.new("RGB", (32, 32), (128, 128, 128))
    jpeg = bytearray(save(image, "JPEG", subsampling="4:4:4"))
    frame = jpeg.index(b"\xff\xc0")
    blocks = []
    for component, factor in enumerate(factors):
        jpeg[frame + 11 + 3 * component] = factor
        blocks.append((factor >> 4) * (factor & 15))
    wide = max(factor >> 4 for factor in factors)
    high = max(factor & 15 for factor in factors)
    units = -(-32 // (8 * wide)) * -(-32 // (8 * high))
    bits = ("001010" * blocks[0] + "0000" * (blocks[1] + blocks[2])) * units
    bits += "1" * (-len(bits) % 8)
    scan = jpeg.index(b"\xff\xda")
    return bytes(jpeg[: scan + 14]) + int(bits, 2).to_bytes(len(bits) // 8, "big") + b"\xff\xd9"


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(
    *,
    width: int,
    height: int,
    bit_depth: int,
    color_type: int,
    rows: bytes,
    interlacing: int = 0,
    before: Iterable[tuple[bytes, bytes]] = (),
    after: Iterable[tuple[bytes, bytes]] = (),
) -> bytes:
    """A PNG file; `rows` are the filtered rows, `before` and `after` chunks around the pixels."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, color_type, 0, 0, interlacing)
    chunks = [(b"IHDR", header), *before, (b"IDAT", zlib.compress(rows)), *after, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def with_chunk(png_file: bytes, kind: bytes, content: bytes) -> bytes:
    """Adds a chunk right after the header."""
    return png_file[:33] + chunk(kind, content) + png_file[33:]
