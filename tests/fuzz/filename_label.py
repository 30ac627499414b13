"""Any name with some patterns: the outcome is a label, an exclusion or a reject."""

from __future__ import annotations

import random

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import ImageAnnotations, encode_annotations
from shardbeam.transforms.formats.names import normalize_key
from tests.support.making import make_format

_PATTERNS = (
    None,
    r"(?P<label>\w+)\.jpg$",
    r"^(?P<folder>[^/]*)/(?P<label>.)?",
    r"(?P<number>\d+)",
    r"(?P<label>)",
    r"(?s)(?P<label>.*)",
)
_FORMATS = [make_format("filename-label", images="i", pattern=pattern) for pattern in _PATTERNS]
_PIECES = (
    *("a", "_", "__", "/", ".", "..", "1", "22", " ", "\n"),
    *("\u2028", "ü", "e\u0301", "臉", "\U0001f600"),
    *(".jpg", ".JPG", ".png", ".txt", ".tar.jpg", "__MACOSX/", "\x7f", "\t"),
)


def fuzz_filename_label(random: random.Random) -> str:
    """Asks for one random name."""
    pieces = random.choices(_PIECES, k=random.randrange(1, 9))
    key = normalize_key("".join(pieces) + random.choice((".jpg", ".PNG", "_a.jpg", "")))
    source = random.choice(_FORMATS)
    found: ImageAnnotations | Exclusion | Reason | None
    try:
        found = source.annotate_listed(key)
    except RejectedError as error:
        found = error.reason
    if found is Reason.NAME_NOT_MATCHED:
        return "rejected"
    if isinstance(found, Exclusion):
        return "excluded"
    assert isinstance(found, ImageAnnotations)
    assert all(found.labels)
    assert all(label in key for label in found.labels)
    assert set(found.values) == {extra.spec.key for extra in source.extra_features()}
    assert encode_annotations(found)
    return "labelled"
