"""Finds labels that a model's predictions disagree with."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardbeam.readers.open.find_findings import FoundImage
from shardbeam.readers.open.images import Place
from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.readers.predictions.given_labels import (
    Boxes,
    Dataset,
    GivenLabels,
    Indexes,
    list_first,
    match_images,
    read_labels,
)
from shardbeam.readers.predictions.prediction_files import (
    ClassTable,
    Detections,
    Rows,
    read_detections,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import counted, show_name

WRONG_CLASS, MISSING_OBJECT, BADLY_PLACED = (
    "likely_wrong_class",
    "likely_missing_object",
    "badly_placed",
)
# {kind: what it is}
PREDICTED_KINDS: Mapping[str, str] = {
    WRONG_CLASS: "likely wrong class",
    MISSING_OBJECT: "likely missing object",
    BADLY_PLACED: "badly placed",
}
# Of two boxes of the same object, the intersection is at least this part of the union (IoU).
_SAME = 0.5
# A box that overlaps another one of its class less is not a shifted box of the same object.
_TOUCHING = 0.1
# From this IoU on a box is placed well.
_WELL = 0.7
# The most pictures of each kind, the likeliest ones.
_MOST = 100_000
# The strongest detections of an image that are compared with its labels, and the most labels.
_DETECTIONS, _OBJECTS = 300, 10_000
# A box may reach beyond its picture by this part of it.
_OUTSIDE = 0.1
# If more than half of the detections are like this, their numbers mean something else.
_HALF = 0.5
# If the model gives another class to more than this share of the objects, their ids may differ.
_MANY_WRONG = 0.3
_STRENGTH = 1_000_000

_Box = tuple[float, float, float, float]
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


def compare_image(given: GivenLabels, detections: Rows) -> Iterator[Difference]:
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
        detections: The detections, with numbers of classes and boxes like those of the dataset.
    """
    boxes, scores = detections["box"], detections["score"]
    order = np.argsort(-scores, kind="stable")
    is_crowd = given.crowds
    iou = _intersections(given.boxes, boxes, of_union=True)
    iou[is_crowd] = 0
    in_crowd = (_intersections(given.boxes[is_crowd], boxes) >= _SAME).any(axis=0)
    is_same = given.objects[:, np.newaxis] == detections["class"]
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


class PredictedImage(FoundImage, frozen=True, kw_only=True):
    """An image whose labels a model disagrees with; `strength` is the margin in millionths.

    Attributes:
        object: The number of the object in question, from 0; None for a label of the image, or for
            an object that is not there.
        label: The class in question; empty for an object that is not there.
        label_box: Left, top, width and height of its box in pixels of the stored picture.
        predicted: The class that the model gives.
        score: How sure the model is, from 0 to 1.
        box: Its box, like `label_box`.
        iou: Intersection over union of both boxes; of the nearest label for a missing object.
        margin: How sure the finding is, from 0 to 1.
        place: Where the Example is.
    """

    object: int | None = None
    label: str = ""
    label_box: _Box | None = None
    predicted: str
    score: float
    box: _Box | None = None
    iou: float | None = None
    margin: float
    place: Place


class Predictions(NamedTuple):
    """What predictions show about a dataset.

    Attributes:
        found: Images by kind, the likeliest ones first; at most 100,000 of each kind.
        notes: What was compared, and what was left out, in lines.
    """

    found: Sequence[PredictedImage]
    notes: Sequence[str]


def find_by_predictions(
    dataset: StoredDataset, *, uri: str, split: str | None = None
) -> Predictions:
    """Ranks the labels of a dataset that a model disagrees with.

    The model must not have seen the pictures in training. All Examples are read.

    Args:
        dataset: The dataset.
        uri: The predictions: COCO results (`.json`) for objects, or a table of class probabilities
            (`.csv`, `.parquet`) for classes of images.
        split: The split that was predicted; None for all.

    Raises:
        InputError: The dataset or the predictions cannot be read, do not fit together, or a value
            is no probability.
    """
    extension = uri.lower().rpartition(".")[2]
    if extension not in ("json", "csv", "parquet"):
        raise InputError(
            uri=uri,
            problem="expected COCO results (.json), or a table of class probabilities (.csv or "
            ".parquet)",
        )
    labels = read_labels(dataset, split=split)
    if extension == "json":
        return _compare_objects(labels, uri=uri)
    return _compare_classes(labels, uri=uri)


def _compare_objects(dataset: Dataset, *, uri: str) -> Predictions:
    if not any(len(image.objects) for image in dataset.images):
        raise InputError(
            uri=dataset.path,
            problem="has no objects with boxes; for classes of images, give a table of class "
            "probabilities (.csv or .parquet)",
        )
    given = read_detections(uri)
    usable, seem_corners = _find_usable(given, dataset=dataset, uri=uri)
    found = _strongest(_compare_images(usable, dataset=dataset, left_out=given.left_out))
    predicted = np.unique(usable["image"])
    objects = sum(int((~dataset.images[each].crowds).sum()) for each in predicted.tolist())
    notes = [_count_images(len(predicted), dataset=dataset)]
    left_out = given.left_out.items()
    notes += [f"not used: {counted(count, 'detection')} {why}" for why, count in left_out if count]
    if seem_corners:
        notes.append(f"{seem_corners}; if they are, write [x, y, width, height]")
    wrong = sum(each.kind == WRONG_CLASS for each in found)
    if wrong > _MANY_WRONG * objects:
        notes.append(
            f"the model gives another class to {wrong:,} of {objects:,} objects: if its ids are "
            "not those of the label map, write the names of classes as `category`"
        )
    return Predictions(found, notes)


def _find_usable(given: Detections, *, dataset: Dataset, uri: str) -> tuple[Rows, str]:
    """Finds the images and classes of detections; counts the others in `given.left_out`.

    Returns:
        The detections in images of the dataset and of its classes, with the numbers of both and
        with boxes like those of the dataset; and why the boxes of the file may be corners, or an
        empty text.
    """
    left_out, rows = given.left_out, given.rows
    counts = np.bincount(rows["image"], minlength=len(given.ids))
    of_ids = match_images(given.ids, counts, dataset=dataset, uri=uri)
    known = {name: number for number, name in enumerate(dataset.names)}
    of_categories = np.array(
        [
            known.get(each, -1) if isinstance(each, str) else dataset.ids.get(each, -1)
            for each in given.categories
        ],
        np.int32,
    )
    if (of_categories < 0).all():
        raise InputError(
            uri=uri,
            problem=f"none of its categories is in the dataset: {list_first(given.categories)}; "
            f"expected ids of the label map, {list_first(dataset.ids)}, or as `category` the names "
            f"of classes, {list_first(dataset.names)}",
        )
    unknown = [
        each for each, number in zip(given.categories, of_categories, strict=True) if number < 0
    ]
    images, classes = of_ids[rows["image"]], of_categories[rows["class"]]
    sizes = np.array([[each.width, each.height] for each in dataset.images], np.float32)[images]
    is_there, is_class = images >= 0, classes >= 0
    seem_corners = _check_boxes(rows["box"][is_there], sizes[is_there], uri=uri)
    inside = np.clip(_corners(rows["box"]), 0, np.tile(sizes, 2))
    has_area = (inside[:, 2:] > inside[:, :2]).all(axis=1)
    used = is_there & is_class & has_area
    left_out["in images that are not in the dataset"] += int((~is_there).sum())
    if unknown:
        left_out[f"of classes that the dataset does not have ({list_first(unknown)})"] += int(
            (is_there & ~is_class).sum()
        )
    left_out["outside of their pictures"] += int((is_there & is_class & ~has_area).sum())
    rows = rows[used]
    rows["image"], rows["class"], rows["box"] = images[used], classes[used], inside[used]
    return rows, seem_corners


def _corners(boxes: Boxes) -> Boxes:
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def _check_boxes(boxes: Boxes, sizes: npt.NDArray[np.float32], *, uri: str) -> str:
    """Checks that the numbers of boxes mean what they should.

    Returns:
        Why they may be corners, if some fit into their pictures only as such; or an empty text.

    Raises:
        InputError: They are fractions, or most boxes reach beyond their pictures.
    """
    expected = "expected [x, y, width, height] in pixels of the stored picture"
    if len(boxes) and boxes.max() <= 1 and sizes.max() > 2:
        raise InputError(uri=uri, problem=f"its boxes are fractions of the pictures; {expected}")
    most = sizes * (1 + _OUTSIDE)
    beyond = (_corners(boxes)[:, 2:] > most).any(axis=1)
    if not beyond.any():
        return ""
    first = int(np.flatnonzero(beyond)[0])
    text = (
        f"{int(beyond.sum()):,} of {len(boxes):,} boxes reach beyond their pictures, such as "
        f"{_round(boxes[first])} in {sizes[first][0]:.0f}x{sizes[first][1]:.0f}"
    )
    fit = ((boxes[:, 2:] > boxes[:, :2]) & (boxes[:, 2:] <= most)).all()
    as_corners = f"{text}, and all fit as corners, [left, top, right, bottom]" if fit else ""
    if beyond.sum() > _HALF * len(boxes):
        why = "" if as_corners else " (not corners, and not pixels of a larger original)"
        raise InputError(uri=uri, problem=f"{as_corners or text}; {expected}{why}")
    return as_corners


def _compare_images(
    given: Rows, *, dataset: Dataset, left_out: Counter[str]
) -> Iterator[PredictedImage]:
    # By image, the strongest first.
    given = given[np.lexsort((-given["score"], given["image"]))]
    starts = np.flatnonzero(np.diff(given["image"], prepend=-1))
    for own in np.split(given, starts)[1:]:
        image = dataset.images[own["image"][0]]
        left_out[f"beyond the {_DETECTIONS} strongest of an image"] += len(own[_DETECTIONS:])
        own = own[:_DETECTIONS]
        if len(image.objects) > _OBJECTS:
            left_out[f"in images with more than {_OBJECTS:,} objects"] += len(own)
            continue
        for each in compare_image(image, own):
            is_there, detection = each.label >= 0, own[each.detection]
            yield PredictedImage(
                **_of_image(image, kind=each.kind, margin=each.margin),
                object=int(image.numbers[each.label]) if is_there else None,
                label=dataset.names[image.objects[each.label]] if is_there else "",
                label_box=_round(_sides(image.boxes[each.label])) if is_there else None,
                predicted=dataset.names[detection["class"]],
                score=round(float(detection["score"]), 4),
                box=_round(_sides(detection["box"])),
                iou=round(each.iou, 4),
            )


def _sides(box: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.concatenate([box[:2], box[2:] - box[:2]])


def _round(box: npt.NDArray[np.float32]) -> _Box:
    left, top, width, height = (round(float(each), 2) for each in box)
    return left, top, width, height


def _compare_classes(dataset: Dataset, *, uri: str) -> Predictions:
    if not any(image.labels for image in dataset.images):
        raise InputError(
            uri=dataset.path,
            problem="no image has a class; for objects, give COCO results (.json)",
        )
    table = ClassTable(uri, classes=dataset.names)
    keys = table.keys()
    images = match_images(keys, np.ones(len(keys), np.int64), dataset=dataset, uri=uri)
    twice = np.flatnonzero(np.bincount(images[images >= 0]) > 1)
    if twice.size:
        key = dataset.images[int(twice[0])].key
        raise InputError(uri=uri, problem=f"two rows are of the image {show_name(key)}")
    one_class = all(len(image.labels) == 1 for image in dataset.images)
    found = _strongest(_compare_rows(table, images, dataset=dataset, one_class=one_class))
    notes = [_count_images(int((images >= 0).sum()), dataset=dataset)]
    if missing := int((images < 0).sum()):
        notes.append(f"{counted(missing, 'row')} of images that are not in the dataset")
    if table.left_out:
        notes.append(f"columns that are no classes are not read: {list_first(table.left_out)}")
    return Predictions(found, notes)


def _compare_rows(
    table: ClassTable, images: Indexes, *, dataset: Dataset, one_class: bool
) -> Iterator[PredictedImage]:
    numbers = iter(images.tolist())
    for rows in table.probabilities(one_class=one_class):
        for row, number in zip(rows, itertools.islice(numbers, len(rows)), strict=True):
            given = [*dataset.images[number].labels] if number >= 0 else []
            if not given or len(given) == len(row):
                continue
            # Of several classes, the one that the model believes least.
            label = min(given, key=row.__getitem__)
            others = row.copy()
            others[given] = -1
            best = int(others.argmax())
            if others[best] > row[label]:
                margin = float(min(1, others[best] - max(0, row[label])))
                yield PredictedImage(
                    **_of_image(dataset.images[number], kind=WRONG_CLASS, margin=margin),
                    label=dataset.names[label],
                    predicted=dataset.names[best],
                    score=round(float(others[best]), 4),
                )


def _of_image(image: GivenLabels, *, kind: str, margin: float) -> dict[str, Any]:
    """Returns the fields of `PredictedImage` that say which image it is, and how sure that is."""
    return {
        "split": image.place.split,
        "number": image.place.number,
        "source": "",
        "key": image.key,
        "place": image.place,
        "kind": kind,
        "strength": round(margin * _STRENGTH),
        "margin": round(margin, 4),
    }


def _strongest(found: Iterable[PredictedImage]) -> list[PredictedImage]:
    """Sorts images by kind, the likeliest first; of each kind it keeps 100,000 at most."""
    by_kind: dict[str, list[PredictedImage]] = {kind: [] for kind in PREDICTED_KINDS}
    for each in found:
        kept = by_kind[each.kind]
        kept.append(each)
        if len(kept) >= 2 * _MOST:
            by_kind[each.kind] = heapq.nsmallest(_MOST, kept, key=_rank)
    return [each for kept in by_kind.values() for each in heapq.nsmallest(_MOST, kept, key=_rank)]


def _rank(found: PredictedImage) -> tuple[int, str, int]:
    return -found.strength, found.split, found.number


def _count_images(number: int, *, dataset: Dataset) -> str:
    return f"predictions for {number:,} of {counted(len(dataset.images), 'image')}"
