"""Fingerprints: digests that add up, so that neither order nor division of a set matters."""

from __future__ import annotations

import hashlib

_MODULUS = 1 << 256


def fingerprint(*facts: str | int) -> str:
    """Digests one element of a set: the SHA-256 of its facts, hex."""
    # Neither names, keys nor URIs hold a NUL, so that no two elements make the same text.
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()


def add_fingerprints(*fingerprints: str) -> str:
    """Adds fingerprints of elements or of sets up, modulo 2²⁵⁶: 64 hex digits, 0 for none."""
    return f"{sum(int(each, 16) for each in fingerprints) % _MODULUS:064x}"
