"""Compares some fields of a struct, so that new fields change no test."""

from __future__ import annotations

from typing import Any


def fields(found: object, *names: str) -> dict[str, Any]:
    """Returns fields of a struct by their names."""
    return {name: getattr(found, name) for name in names}
