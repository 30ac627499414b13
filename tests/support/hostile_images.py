"""Makes small files, byte by byte, that take much memory or time to decode."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable

from PIL import Image

from tests.support.image_makers import chunk, save, segment

_BLOCKS_PER_RUN = (1 << 15) - 1

# Made by libavif, because Pillow only encodes 8 bits.
_AVIF = (
    "AAAAHGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZgAAAOttZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAA"
    "AAAAAAAAAAAAAA5waXRtAAAAAAABAAAAHmlsb2MAAAAARAAAAQABAAAAAQAAAQ8AAABlAAAAKGlpbmYAAAAAAAEA"
    "AAAaaW5mZQIAAAAAAQAAYXYwMUNvbG9yAAAAAGppcHJwAAAAS2lwY28AAAAUaXNwZQAAAAAAAAgAAAAGAAAAABBw"
    "aXhpAAAAAAMMDAwAAAAMYXYxQ4FMYAAAAAATY29scm5jbHgAAgACAAaAAAAAF2lwbWEAAAAAAAAAAQABBAECgwQA"
    "AABtbWRhdBIACgpbKr/9/2tAgIGiMlUR4JjBMMMMM8gCgM/LYcBU8Xpgj6VX4AWCM8hk1A/RmQNyFfQF9wjMeXju"
    "cCw0WWLnRsNioNHqZUHCC9xHC8F8f7ZI+pLgoFzti+HFvz+SWFJgUvJs"
)


def avif_of_twelve_bits(*, announced: int = 12) -> bytes:
    """An AVIF of one colour, 2048 x 1536 in 4:4:4, whose header may say 8 bits a channel."""
    data = bytearray(base64.b64decode(_AVIF))
    if announced == 8:
        data[data.index(b"av1C") + 6] &= 0x9F
        sizes = data.index(b"pixi") + 9
        data[sizes : sizes + 3] = b"\x08" * 3
    return bytes(data)


def jpeg_with_hidden_scans(width: int, height: int, *, scans: int) -> bytes:
    """A progressive JPEG whose scans but the first look like the content of a segment `FF 02`."""
    photograph = save(
        Image.new("L", (8, 8), 128), "JPEG", progressive=True, restart_marker_blocks=1
    )
    header = bytearray(photograph[: photograph.index(b"\xff\xda")])
    frame = header.index(b"\xff\xc2") + 5
    header[frame : frame + 4] = struct.pack(">HH", height, width)
    scan = segment(0xDA, b"\1\1\0\0\0\0") + b"\0"
    return bytes(header) + scan + b"\xff\x02\xff\xff" + scan * (scans - 1) + b"\xff\xd9"


def progressive_jpeg(width: int, height: int, *, scans: int, comment: bytes = b"") -> bytes:
    """A gray progressive JPEG in any number of scans of a few bytes for 32,767 blocks.

    Each scan refines one bit of one coefficient, in the order that T.81, G.1.1.1 allows, so that
    libjpeg has nothing to warn of.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        scans: How many scans, 883 at most.
        comment: Content of a comment between the first two scans.
    """
    blocks = -(-width // 8) * -(-height // 8)
    # `0` is the only code. It means no difference in DC, and 2^14 to 2^15 - 1 empty blocks.
    tables = [
        segment(0xC4, bytes((table, 1)) + bytes(15) + bytes((symbol,)))
        for table, symbol in ((0x00, 0x00), (0x10, 0xE0))
    ]
    runs = ("0" + "1" * 14) * -(-blocks // _BLOCKS_PER_RUN)
    steps = [(0, 0, 0, 0)]
    for coefficient in range(1, 64):
        steps.append((coefficient, coefficient, 0, 13))
        steps += [(coefficient, coefficient, bit + 1, bit) for bit in range(12, -1, -1)]
    assert scans <= len(steps)
    parts = [
        *(b"\xff\xd8", segment(0xDB, b"\0" + b"\1" * 64)),
        *(segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"), *tables),
    ]
    for number, (first, last, high, low) in enumerate(steps[:scans]):
        parts.append(segment(0xDA, b"\1\1\0" + bytes((first, last, high << 4 | low))))
        parts.append(_entropy_coded("0" * blocks if number == 0 else runs))
        if number == 0 and comment:
            parts.append(segment(0xFE, comment))
    return b"".join((*parts, b"\xff\xd9"))


def _entropy_coded(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")


def png_with_header(width: int, height: int, *, bit_depth: int, color_type: int) -> bytes:
    """Makes a PNG file whose pixel data is missing."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, color_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0\0")), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def png_of_two_sizes(second: tuple[int, int], *, between: bytes = b"") -> bytes:
    """A PNG file of 16 x 16 pixels, with a second header and perhaps a chunk before it."""
    first = png_with_header(16, 16, bit_depth=8, color_type=6)[:33]
    return first + between + png_with_header(*second, bit_depth=8, color_type=6)[8:]


def png_with_text(text: bytes) -> bytes:
    """A PNG file whose compressed text inflates to this."""
    data = save(Image.new("L", (8, 8)), "PNG")
    return data[:33] + chunk(b"zTXt", b"Comment\0\0" + zlib.compress(text)) + data[33:]


def tiff(entries: Iterable[tuple[int, int, int]], *, pixels: bytes, big: bool = False) -> bytes:
    """A little-endian TIFF or BigTIFF of `(tag, type, value)`, with `pixels` from byte 16 on."""
    layout, number = ("<HHQQ", "<Q") if big else ("<HHII", "<I")
    directory = b"".join(struct.pack(layout, tag, kind, 1, value) for tag, kind, value in entries)
    count = len(directory) // struct.calcsize(layout)
    header = b"II+\0\x08\0\0\0" if big else b"II*\0"
    return (
        (header + struct.pack(number, 16 + len(pixels))).ljust(16, b"\0")
        + pixels
        + struct.pack("<Q" if big else "<H", count)
        + directory
        + bytes(8)
    )


def tiled_tiff(
    size: tuple[int, int],
    tile: tuple[int, int],
    *,
    repeated: Iterable[tuple[int, int, int]] = (),
    big: bool = False,
) -> bytes:
    """Makes a gray TIFF of one tile, compressed with Deflate, with `repeated` tags twice."""
    pixels = zlib.compress(bytes(100))
    entries = [
        *((256, 4, size[0]), (257, 4, size[1]), (258, 3, 8), (259, 3, 8), (262, 3, 1)),
        *((277, 3, 1), (322, 4, tile[0]), (323, 4, tile[1]), (324, 4, 16), (325, 4, len(pixels))),
        *repeated,
    ]
    # The sort is stable, so repeated tags come second.
    return tiff(sorted(entries, key=lambda entry: entry[0]), pixels=pixels, big=big)


def gif_with_frames(canvas: tuple[int, int], frames: Iterable[tuple[int, int]]) -> bytes:
    """Makes a GIF whose canvas and frames have any size, with hardly any pixel data."""
    screen = b"GIF89a" + struct.pack("<HHBBB", *canvas, 0x80, 0, 0) + bytes(6)
    return (
        screen
        + b"".join(
            b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x4c\x01\0"
            for frame in frames
        )
        + b";"
    )


def webp_with_canvas(width: int, height: int) -> bytes:
    """An animated WebP whose canvas is larger than its frame."""
    first, second = Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8), "red")
    data = bytearray(save(first, "WEBP", save_all=True, append_images=[second]))
    start = data.index(b"VP8X") + 12
    data[start : start + 6] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


def icon(image: bytes, *, side: int = 16) -> bytes:
    """Makes an icon of one image; its directory gives the size `side`."""
    directory = b"\0\0\1\0\1\0" + bytes((side, side, 0, 0, 1, 0, 32, 0))
    return directory + len(image).to_bytes(4, "little") + (22).to_bytes(4, "little") + image
