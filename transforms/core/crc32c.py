"""CRC-32C of data in parts, which need not be put together for it."""

from __future__ import annotations

import google_crc32c


def crc32c(*chunks: bytes) -> int:
    """Computes the CRC-32C of data in one or several parts."""
    crc = 0
    for chunk in chunks:
        crc = google_crc32c.extend(crc, chunk)
    return crc
