"""Compares the labels of an image with the detections of a model in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardbeam.readers.predictions.given_labels import Boxes, GivenLabels, Indexes

WRONG_CLASS, MISSING_OBJECT, BADLY_PLACED = (
    "likely_wrong_class",
    "likely_missing_object",
    "badly_placed",
)
# Of two boxes of the same object, the intersection is at least this part of the union (IoU).
_SAME = 0.5
# A box that overlaps another one of its class less is not a shifted box of the same object.
_TOUCHING = 0.1
# From this IoU on a box is placed well.
_WELL = 0.7

_Floats = npt.NDArray[np.float32]
_Flags = npt.NDArray[np.bool_]


class Difference(NamedTuple):
    """A label and a detection that do not agree.

    Attributes:
        kind: How they differ.
        label: The object's index in `GivenLabels.objects`; -1 if none is there.
        detection: The detection's index.
        margin: How sure it is, from 0 to 1: the detection's score without what speaks for the label
            (the score of its class, or the IoU).
        iou: Intersection over union of both boxes.
    """

    kind: str
    label: int
    detection: int
    margin: float
    iou: float


def compare_image(
    given: GivenLabels, *, classes: Indexes, boxes: Boxes, scores: _Floats
) -> Iterator[Difference]:
    """Yields what differs between the labels and the detections of an image.

    Each detection takes the label of its class that it overlaps most, the most certain first, if
    the IoU is at least 0.5, and in a second round at least 0.1. What is left over:

    - `likely_wrong_class`: a free detection of another class has an IoU of at least 0.5 with the
      label, and with no other label a greater one. Its score is greater than that of the label's
      class there.
    - `badly_placed`: a label and its detection have an IoU of less than 0.7.
    - `likely_missing_object`: a free detection has an IoU of less than 0.5 with all labels, does
      not lie in a crowd, and a more certain one does not show the same object.

    Args:
        given: What the dataset says about the image.
        classes: The class of each detection, numbered like those of the dataset.
        boxes: Their boxes, like those of the dataset.
        scores: Their scores.
    """
    order = np.argsort(-scores, kind="stable")
    is_crowd = given.crowds
    iou = _intersections(given.boxes, boxes, of_union=True)
    iou[is_crowd] = 0
    in_crowd = (_intersections(given.boxes[is_crowd], boxes) >= _SAME).any(axis=0)
    is_same = given.objects[:, np.newaxis] == classes
    same_class = np.where(is_same, iou, 0)
    partner = np.full(len(given.objects), -1)
    is_free = np.ones(len(scores), np.bool_)
    for least in (_SAME, _TOUCHING):
        near = is_free & (same_class.max(axis=0, initial=0) >= least)
        for number in order[near[order]].tolist():
            fitting = np.where(partner < 0, same_class[:, number], 0)
            if fitting.max() >= least:
                label = int(fitting.argmax())
                partner[label], is_free[number] = number, False
    yield from _wrong_classes(iou, is_same, scores=scores, is_free=is_free)
    for label in np.flatnonzero(partner >= 0).tolist():
        number = int(partner[label])
        overlap = float(iou[label, number])
        if overlap < min(_WELL, scores[number]):
            yield Difference(BADLY_PLACED, label, number, float(scores[number]) - overlap, overlap)
    yield from _missing(iou, boxes=boxes, scores=scores, order=order[(is_free & ~in_crowd)[order]])


def _wrong_classes(
    iou: _Floats, is_same: _Flags, *, scores: _Floats, is_free: _Flags
) -> Iterator[Difference]:
    if not iou.size:
        return
    is_there = iou >= _SAME
    of_label = np.where(is_there & is_same, scores, 0).max(axis=1)
    is_best = iou.argmax(axis=0) == np.arange(len(iou))[:, np.newaxis]
    of_others = np.where(is_there & ~is_same & is_best & is_free, scores, 0)
    for label in np.flatnonzero(of_others.max(axis=1) > of_label).tolist():
        number = int(of_others[label].argmax())
        margin = float(of_others[label, number] - of_label[label])
        yield Difference(WRONG_CLASS, label, number, margin, float(iou[label, number]))


def _missing(
    iou: _Floats, *, boxes: Boxes, scores: _Floats, order: npt.NDArray[np.intp]
) -> Iterator[Difference]:
    nearest = iou.max(axis=0, initial=0)
    order = order[nearest[order] < np.minimum(_SAME, scores[order])]
    is_same = _intersections(boxes[order], boxes[order], of_union=True) >= _SAME
    is_left = np.ones(len(order), np.bool_)
    for place, number in enumerate(order.tolist()):
        if is_left[place]:
            overlap = float(nearest[number])
            yield Difference(MISSING_OBJECT, -1, number, float(scores[number]) - overlap, overlap)
            # Weaker detections show the same object.
            is_left &= ~is_same[place]


def _intersections(boxes: Boxes, others: Boxes, *, of_union: bool = False) -> _Floats:
    """Returns the part of `others`, or of the union of both, that lies in `boxes`: (n, m)."""
    first, second = boxes[:, np.newaxis].astype(np.float64), others.astype(np.float64)
    sides = np.minimum(first[..., 2:], second[:, 2:]) - np.maximum(first[..., :2], second[:, :2])
    shared = np.maximum(sides, 0).prod(axis=-1)
    whole = np.maximum(second[:, 2:] - second[:, :2], 0).prod(axis=-1)
    if of_union:
        whole = whole + np.maximum(first[..., 2:] - first[..., :2], 0).prod(axis=-1) - shared
    return np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0).astype(np.float32)
