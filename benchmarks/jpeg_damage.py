"""How much damage inside JPEG files is found, and how much other decoders let through.

`python -m benchmarks.jpeg_damage` prints the table as Markdown.
"""

from __future__ import annotations

import argparse
import collections
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.images.check import check_image

WIDTH, HEIGHT = 640, 480
BLOCK_BYTES = 4096
LONGEST_CUT_BYTES = 1500
PHOTOGRAPHS = 20


def make_photographs(*, count: int, seed: int, **options: object) -> list[bytes]:
    """Makes textured, photograph-like JPEGs of 640 x 480 pixels and about 135 KB each.

    The size matters: the denser the data, the sooner damage shows (at 45 KB, 70 % of it).

    Args:
        count: How many.
        seed: Their pictures.
        options: Pillow's options for saving, such as `progressive`.
    """
    rng = np.random.default_rng(seed)
    return [_make_photograph(rng, options) for _ in range(count)]


def _make_photograph(rng: np.random.Generator, options: Mapping[str, object]) -> bytes:
    pixels = np.full((HEIGHT, WIDTH, 3), 128.0)
    # As in a photograph, contrast falls as detail gets finer, down to the grain of the sensor.
    for rows in (3, 8, 20, 50, 120, HEIGHT):
        shape = (rows, rows * WIDTH // HEIGHT)
        contrast = 90 / rows**0.5
        light = rng.normal(size=shape) * contrast
        for channel in range(3):
            colour = light + rng.normal(size=shape) * contrast / 4
            layer = Image.fromarray(colour.astype(np.float32))
            pixels[..., channel] += layer.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    photograph = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    photograph.save(buffer, "JPEG", quality=95, **options)
    return buffer.getvalue()


def _scan_start(data: bytes) -> int:
    # Pillow writes no other scan, and no thumbnail.
    start = data.index(b"\xff\xda")
    return start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")


def _flip_bits(data: bytes, rng: np.random.Generator, *, count: int) -> bytes:
    damaged = bytearray(data)
    for position in rng.integers(_scan_start(data), len(data) - 2, size=count):
        damaged[position] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def _flip_1_bit(data: bytes, rng: np.random.Generator) -> bytes:
    return _flip_bits(data, rng, count=1)


def _flip_3_bits(data: bytes, rng: np.random.Generator) -> bytes:
    return _flip_bits(data, rng, count=3)


def _block_start(data: bytes, rng: np.random.Generator) -> int:
    return int(rng.integers(_scan_start(data), len(data) - 2 - BLOCK_BYTES))


def _cut(data: bytes, rng: np.random.Generator) -> bytes:
    start = _block_start(data, rng)
    return data[:start] + data[start + int(rng.integers(1, LONGEST_CUT_BYTES + 1)) :]


def _zero(data: bytes, rng: np.random.Generator) -> bytes:
    start = _block_start(data, rng)
    return data[:start] + bytes(BLOCK_BYTES) + data[start + BLOCK_BYTES :]


def _double(data: bytes, rng: np.random.Generator) -> bytes:
    start = _block_start(data, rng)
    return data[: start + BLOCK_BYTES] + data[start:]


def _swap(data: bytes, rng: np.random.Generator) -> bytes:
    first = second = 0
    while second - first < BLOCK_BYTES:
        first, second = sorted((_block_start(data, rng), _block_start(data, rng)))
    first_end, second_end = first + BLOCK_BYTES, second + BLOCK_BYTES
    return (
        data[:first]
        + data[second:second_end]
        + data[first_end:second]
        + data[first:first_end]
        + data[second_end:]
    )


def _truncate(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(_scan_start(data), len(data)))]


DAMAGES: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "1 bit flipped": _flip_1_bit,
    "3 bits flipped": _flip_3_bits,
    f"1 to {LONGEST_CUT_BYTES} bytes cut out": _cut,
    f"{BLOCK_BYTES} bytes zeroed": _zero,
    f"{BLOCK_BYTES} bytes doubled": _double,
    f"two blocks of {BLOCK_BYTES} bytes swapped": _swap,
    "truncated": _truncate,
}
BIT_FLIPS = tuple(DAMAGES)[:2]


def make_damages(*, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yields `(kind, damaged JPEG)`, the kinds in equal shares."""
    rng = np.random.default_rng(seed)
    photographs = itertools.cycle(make_photographs(count=PHOTOGRAPHS, seed=seed))
    kinds = itertools.islice(itertools.cycle(DAMAGES), count)
    for kind, photograph in zip(kinds, photographs, strict=False):
        yield kind, DAMAGES[kind](photograph, rng)


def is_found(data: bytes) -> bool:
    """Tells whether `check_image` refuses a file."""
    try:
        check_image(data, name="image.jpg", settings=ImageConfig())
    except RejectedError:
        return True
    return False


def _pillow_refuses(data: bytes) -> bool:
    try:
        Image.open(io.BytesIO(data)).load()
    except (OSError, SyntaxError):
        return True
    return False


def _load_tensorflow() -> Callable[[bytes], bool]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    def refuses(data: bytes) -> bool:
        try:
            tf.io.decode_jpeg(data)
        except tf.errors.InvalidArgumentError:
            return True
        return False

    return refuses


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="damages (default: 1000)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    finders = {
        "Shardbeam": is_found,
        "Pillow `load()`": _pillow_refuses,
        "`tf.io.decode_jpeg`": _load_tensorflow(),
    }
    total: collections.Counter[str] = collections.Counter()
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for kind, data in make_damages(count=arguments.count, seed=arguments.seed):
        total[kind] += 1
        for name, finds in finders.items():
            found[kind, name] += finds(data)

    def row(title: str, kinds: Iterable[str]) -> None:
        kinds = tuple(kinds)
        damages = sum(total[kind] for kind in kinds) or 1
        shares = [sum(found[kind, name] for kind in kinds) / damages for name in finders]
        print("|", title, "|", damages, "|", " | ".join(f"{share:.1%}" for share in shares), "|")

    print("| damage | files |", " | ".join(f"found by {name}" for name in finders), "|")
    print("|---" * (2 + len(finders)) + "|")
    for kind in DAMAGES:
        row(kind, [kind])
    row("all but the bit flips", [kind for kind in DAMAGES if kind not in BIT_FLIPS])
    row("all", DAMAGES)


if __name__ == "__main__":
    main()
