"""Small files of Label Studio, and an encoder of its brushes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


def region(tag: str, label: str, **value: Any) -> dict[str, Any]:  # noqa: ANN401
    """A result of an image of 200x100 pixels."""
    return {
        "original_width": 200,
        "original_height": 100,
        "image_rotation": 0,
        "value": {**value, f"{tag}labels": [label]},
        "from_name": "label",
        "to_name": "image",
        "type": f"{tag}labels",
    }


def task(image: str, *results: object, was_cancelled: bool = False) -> dict[str, Any]:
    """A task with one annotation."""
    return {
        "id": 1,
        "annotations": [
            {"id": 1, "completed_by": 1, "result": [*results], "was_cancelled": was_cancelled}
        ],
        "data": {"image": image},
        "predictions": [],
    }


def encode_brush(
    values: Sequence[int],
    *,
    lengths: Sequence[int] = (3, 4, 8, 16),
    source: random.Random | None = None,
) -> list[int]:
    """Encodes values in rle-pack's coding, bit by bit.

    Args:
        values: The values.
        lengths: The four lengths of counts in bits.
        source: Decides which of the possible runs are written; None for the longest.
    """
    bits = [f"{len(values):032b}", f"{8 - 1:05b}", *(f"{length - 1:04b}" for length in lengths)]
    at = 0
    while at < len(values):
        index = source.randrange(4) if source else max(range(4), key=lambda it: lengths[it])
        most = min(2 ** lengths[index], len(values) - at)
        same = 1
        while same < most and values[at + same] == values[at]:
            same += 1
        is_run = same > 1 if source is None else source.random() < 0.5
        count = same if is_run else source.randint(1, most) if source else 1
        bits.append(f"{int(is_run):b}{index:02b}{count - 1:0{lengths[index]}b}")
        bits += [f"{value:08b}" for value in values[at : at + (1 if is_run else count)]]
        at += count
    text = "".join(bits)
    return [int(text[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(text), 8)]
