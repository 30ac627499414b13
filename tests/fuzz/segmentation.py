"""Segmentations, whole and broken."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.examples.geometry.segmentation import draw_segmentation

_ODD_NUMBERS = (-1, 0, 0.5, 1e9, -1e9, 1e38, 1e300, 2**31, 2**32, 2**63, 1e-320, None, "7", [1])
_CORRECTIONS = {correction.value for correction in Correction}


def fuzz_segmentation(rng: random.Random) -> str:
    """Draws one, partly broken, and checks that the outcome is a mask or a ValueError.

    Args:
        rng: Where all randomness comes from.

    Returns:
        Which of them it was: `drawn` or `error`.
    """
    width, height = rng.randrange(1, 40), rng.randrange(1, 40)
    segmentation = (_polygons if rng.random() < 0.5 else _runs)(rng, width=width, height=height)
    text = json.dumps(segmentation).encode()
    if rng.random() < 0.3:
        text = _broken(text, rng=rng)
    corrections = Corrections()
    try:
        crop = draw_segmentation(
            text,
            frame=(width, height),
            extent=rng.choice(((width, height), (width, height), (1, 1), (2 * width, 2 * height))),
            box=(0, 0, rng.uniform(0, width), rng.uniform(0, height)),
            corrections=corrections,
        )
    except ValueError:
        return "error"
    assert corrections.keys() <= _CORRECTIONS
    if crop is not None:
        rows, columns = crop.pixels.shape
        assert 0 <= crop.left < crop.left + columns <= width, text
        assert 0 <= crop.top < crop.top + rows <= height, text
        assert crop.pixels.max() == 1, text
    return "drawn"


def _polygons(rng: random.Random, *, width: int, height: int) -> Any:  # noqa: ANN401  # JSON.
    polygons: list[Any] = [
        [
            rng.uniform(-5, (width, height)[index % 2] + 5)
            for index in range(rng.choice((4, 6, 6, 8, 20, 7)))
        ]
        for _ in range(rng.randrange(1, 4))
    ]
    while rng.random() < 0.3:
        polygon = rng.choice(polygons)
        polygon[rng.randrange(len(polygon))] = rng.choice(_ODD_NUMBERS)
    return polygons


def _runs(rng: random.Random, *, width: int, height: int) -> Any:  # noqa: ANN401  # JSON.
    rows = [rng.getrandbits(width) for _ in range(height)]
    mask = np.array([[row >> column & 1 for column in range(width)] for row in rows], np.uint8)
    counts: Any = coco_mask.encode(np.asfortranarray(mask))["counts"].decode()
    if rng.random() < 0.5:
        counts = [rng.randrange(0, 2 * height) for _ in range(rng.randrange(0, width + 1))]
        counts.append(width * height - sum(counts))
        while counts and rng.random() < 0.2:
            counts[rng.randrange(len(counts))] = rng.choice(_ODD_NUMBERS)
    elif rng.random() < 0.4:
        place = rng.randrange(len(counts) + 1)
        counts = counts[:place] + chr(rng.randrange(40, 120)) + counts[place + rng.randrange(3) :]
    size: list[Any] = [height, width]
    while rng.random() < 0.15:
        size[rng.randrange(2)] = rng.choice((*_ODD_NUMBERS, width, height, 3000))
    return {"counts": counts, "size": size}


def _broken(text: bytes, *, rng: random.Random) -> bytes:
    damaged = bytearray(text)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(damaged))
        if rng.random() < 0.5:
            damaged[place] = rng.choice(b'0123456789.,-e[]{}" \xff')
        else:
            del damaged[place : place + rng.randrange(1, 9)]
            damaged += b" "
    return bytes(damaged)
