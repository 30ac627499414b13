"""CRC-32C of data in parts, which are digested wherever they are at hand."""

from __future__ import annotations

import functools

import google_crc32c

# Castagnoli's polynomial, the lowest bit first (RFC 3720, 12.1).
_POLYNOMIAL = 0x82F63B78

# What becomes of a checksum's 4 bytes, by value, the lowest first.
_Table = tuple[tuple[int, ...], ...]


def crc32c(*chunks: bytes) -> int:
    """Computes the CRC-32C of data in one or several parts."""
    crc = 0
    for chunk in chunks:
        crc = google_crc32c.extend(crc, chunk)
    return crc


def concatenate_crc32c(first: int, second: int, *, second_bytes: int) -> int:
    """Computes the CRC-32C of two parts together, from their own, without either's bytes.

    Checksums are linear: zeros behind the first part change its checksum by a matrix, which
    depends on their number alone, and the second part's comes on top (zlib's `crc32_combine`).

    Args:
        first: The first part's.
        second: The second part's.
        second_bytes: Length of the second part.
    """
    power = 0
    while second_bytes:
        if second_bytes & 1:
            byte0, byte1, byte2, byte3 = _append_zeros(power)
            # As in `_apply`, whose call would cost as much again.
            first = (
                byte0[first & 255]
                ^ byte1[first >> 8 & 255]
                ^ byte2[first >> 16 & 255]
                ^ byte3[first >> 24]
            )
        second_bytes >>= 1
        power += 1
    return first ^ second


def _apply(table: _Table, crc: int) -> int:
    byte0, byte1, byte2, byte3 = table
    return byte0[crc & 255] ^ byte1[crc >> 8 & 255] ^ byte2[crc >> 16 & 255] ^ byte3[crc >> 24]


@functools.cache
def _append_zeros(power: int) -> _Table:
    """Tabulates what 2^power zero bytes do to a checksum."""
    if power:
        half = _append_zeros(power - 1)
        columns = [_apply(half, _apply(half, 1 << bit)) for bit in range(32)]
    else:
        columns = [_append_zero(1 << bit) for bit in range(32)]
    return tuple(_combinations(columns[bit : bit + 8]) for bit in range(0, 32, 8))


def _append_zero(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


def _combinations(columns: list[int]) -> tuple[int, ...]:
    """Returns, for every byte, the sum of the columns that its bits choose."""
    sums = [0]
    for column in columns:
        sums += [column ^ other for other in sums]
    return tuple(sums)
