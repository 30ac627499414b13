"""Decodes the masks that Label Studio's brush draws.

They are the red, green, blue and opacity of each pixel, row by row, in the coding of the JavaScript
package rle-pack (https://github.com/thi-ng/umbrella, `packages/rle-pack`): a stream of bits, the
highest of each byte first. It begins with the number of values (32 bits), the length of a value in
bits - 1 (5 bits), and four lengths of counts in bits - 1 (4 bits each). Then follow runs: a bit
that says whether one value is repeated, the index of the count's length (2 bits), the count - 1,
and the value, or as many values as the count says.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.examples.geometry.boxes import Size
from shardbeam.transforms.examples.geometry.segmentation import MAX_MASK_PIXELS

_CHANNELS = 4
_MAX_VALUE_BITS = 8
# More than any header, count or value takes.
_PADDING = bytes(8)


class _Bits:
    """A stream of bits."""

    def __init__(self, data: bytes) -> None:
        self._data = data + _PADDING
        self._all = np.unpackbits(np.frombuffer(data, np.uint8))
        self._at = 0

    def read(self, count: int) -> int:
        """Reads a number of at most 32 bits."""
        self._advance(count)
        first, end = self._at - count >> 3, self._at + 7 >> 3
        number = int.from_bytes(self._data[first:end], "big")
        return number >> (8 * end - self._at) & ((1 << count) - 1)

    def read_many(self, values: int, *, bits: int) -> npt.NDArray[np.uint8]:
        """Reads several numbers of at most 8 bits."""
        self._advance(values * bits)
        digits = self._all[self._at - values * bits : self._at].reshape(values, bits)
        weights = 1 << np.arange(bits - 1, -1, -1)
        return (digits @ weights).astype(np.uint8)

    def _advance(self, count: int) -> None:
        self._at += count
        if self._at > len(self._all):
            raise ValueError("rle: the mask ends in the middle")


def decode_brush(data: bytes, *, size: Size) -> npt.NDArray[np.uint8]:
    """Decodes a mask; a pixel is in it if it is not wholly transparent.

    Args:
        data: The numbers of `rle`.
        size: The image's width and height.

    Returns:
        A mask of 0 and 1, (height, width).

    Raises:
        ValueError: It is not such a mask, or one of an image of another size.
    """
    width, height = size
    bits = _Bits(data)
    count = bits.read(32)
    if width * height > MAX_MASK_PIXELS or count != _CHANNELS * width * height:
        raise ValueError(f"rle: {count:,} values are no mask of an image of {width}x{height}")
    value_bits = bits.read(5) + 1
    if value_bits > _MAX_VALUE_BITS:
        raise ValueError(f"rle: values of {value_bits} bits, expected at most {_MAX_VALUE_BITS}")
    count_bits = [bits.read(4) + 1 for _ in range(4)]
    values = np.zeros(count, np.uint8)
    at = 0
    while at < count:
        is_repeated = bits.read(1)
        run = bits.read(count_bits[bits.read(2)]) + 1
        if at + run > count:
            raise ValueError("rle: more values than it says")
        values[at : at + run] = (
            bits.read(value_bits) if is_repeated else bits.read_many(run, bits=value_bits)
        )
        at += run
    return (values.reshape(height, width, _CHANNELS)[:, :, -1] > 0).view(np.uint8)
