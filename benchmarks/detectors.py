"""Simulated detectors, which see the objects of pictures more or less well."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_LEAST_SIDE_PX = 1


class Detector(NamedTuple):
    """How well a detector sees.

    Attributes:
        recall: Share of the objects that it finds.
        precision: Share of those to which it gives the right class.
        shake: Standard deviation of a box's sides, in its width and height.
        extra: Detections of nothing, for each picture.
        scores: Parameters of the beta distribution of its scores; wrong ones are 3/4 of that.
    """

    recall: float
    precision: float
    shake: float
    extra: float
    scores: tuple[float, float]

    def see(
        self,
        objects: Sequence[Mapping[str, Any]],
        *,
        size: tuple[int, int],
        classes: Sequence[int],
        rng: random.Random,
    ) -> Iterator[dict[str, Any]]:
        """Yields what it sees of a picture's true objects, as COCO results without an image."""
        for each in objects:
            x, y, w, h = each["bbox"]
            if rng.random() > self.recall:
                continue
            dx, dy, dw, dh = (rng.gauss(0, self.shake) for _ in range(4))
            box = [x + w * dx, y + h * dy, w * max(0.3, 1 + dw), h * max(0.3, 1 + dh)]
            other = rng.choice([one for one in classes if one != each["category_id"]])
            pair = [each["category_id"], other]
            score = rng.betavariate(*self.scores)
            if rng.random() > self.precision:
                pair.reverse()
                score *= 0.75
            # Another class gets part of the rest.
            for category, its in zip(
                pair, (score, (1 - score) * rng.uniform(0.3, 0.9)), strict=True
            ):
                yield from _result(category, box, its, size=size)
        while rng.random() < self.extra / (1 + self.extra):
            w, h = (side * rng.uniform(0.05, 0.4) for side in size)
            box = [rng.uniform(0, size[0] - w), rng.uniform(0, size[1] - h), w, h]
            yield from _result(rng.choice(classes), box, rng.betavariate(1.2, 4), size=size)


DETECTORS: Mapping[str, Detector] = {
    "good": Detector(0.97, 0.97, 0.03, 0.2, (8, 1.5)),
    "middling": Detector(0.8, 0.85, 0.1, 1.0, (3, 2)),
}


def _result(
    category: int, box: Sequence[float], score: float, *, size: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    x, y = max(0, box[0]), max(0, box[1])
    width, height = min(box[0] + box[2], size[0]) - x, min(box[1] + box[3], size[1]) - y
    if min(width, height) > _LEAST_SIDE_PX:
        yield {"category_id": category, "bbox": [x, y, width, height], "score": score}
