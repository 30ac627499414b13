"""Fingerprints: digests that can be added, in any order and grouping of a set."""

from __future__ import annotations

import hashlib

_MODULUS = 1 << 256


def fingerprint(*facts: str | int) -> str:
    """Digests one element of a set: the SHA-256 of its facts, in hex."""
    # Names, keys and URIs contain no NUL, so that different facts give different texts.
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()


def add_fingerprints(*fingerprints: str) -> str:
    """Adds up fingerprints of elements or sets modulo 2²⁵⁶: 64 hex digits, all 0 for none."""
    return f"{sum(int(each, 16) for each in fingerprints) % _MODULUS:064x}"
