"""Corrections are counted, and their values kept."""

from __future__ import annotations

import math

import msgspec
import pytest

from shardbeam.configs.decoding import JsonDecoder, MsgpackDecoder
from shardbeam.transforms.core.corrections import MOST_NAMED, Corrections
from shardbeam.transforms.core.reasons import Correction

CLIPPED = Correction.BOX_CLIPPED


def test_what_is_noted_is_counted_and_kept() -> None:
    corrections = Corrections({"box_clipped": 1, "image_resized": 0}, {"box_clipped": [(1, 2)]})
    corrections.note(CLIPPED, (0.0, -1.5), (0.0, 0.0))
    corrections.note(Correction.EXCLUDED_LABEL_DROPPED, "dog")
    assert corrections.counts() == {"box_clipped": 2, "excluded_label_dropped": 1}
    assert corrections.changes == {
        "box_clipped": [(1, 2), ([0.0, -1.5], [0.0, 0.0])],
        "excluded_label_dropped": [("dog", None)],
    }


def test_of_very_many_all_are_counted_and_the_first_are_kept() -> None:
    corrections = Corrections()
    for number in range(MOST_NAMED + 7):
        corrections.note(CLIPPED, number)
    other = Corrections()
    other.note(CLIPPED, "other")
    both = Corrections(other, other.changes)
    both.include(corrections, corrections.changes)
    assert both == {"box_clipped": MOST_NAMED + 8}
    kept = [before for before, _ in both.changes["box_clipped"]]
    assert kept == ["other", *range(MOST_NAMED - 1)]
    # The included corrections stay as they were.
    assert len(corrections.changes["box_clipped"]) == MOST_NAMED
    assert len(other.changes["box_clipped"]) == 1


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (1 / 3, 0.333333),
        (1234567.0, 1234570.0),
        (math.nan, None),
        ((math.inf, 2.0), [None, 2.0]),
        ("a" * 81, "a" * 80 + "…"),
        ("a" * 80, "a" * 80),
        (10**30, str(10**30)),
        (2**64 - 1, 2**64 - 1),
        ([*range(100)], [*range(8)]),
        (b"bytes", None),
        (object(), None),
        (True, True),
    ],
)
def test_values_are_short_and_survive_json_and_messagepack(value: object, kept: object) -> None:
    corrections = Corrections()
    corrections.note(CLIPPED, value)
    ((before, after),) = corrections.changes["box_clipped"]
    assert (before, after) == (kept, None)
    assert JsonDecoder().decode(msgspec.json.encode(before)) == kept
    assert MsgpackDecoder().decode(msgspec.msgpack.encode(before)) == kept
