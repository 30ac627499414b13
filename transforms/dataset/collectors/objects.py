"""Counts the objects of Examples, and finds odd ones.

Values of many Examples are collected first, and looked at together, so that counting does not slow
encoding down.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from shardbeam.transforms.dataset.collectors.base import (
    MAX_COLLECTED,
    ByName,
    Collector,
    Item,
    ShardFacts,
    Values,
    add_up,
    add_up_pairs,
    count_bins,
    count_names,
    counted_version,
    cut_pairs,
    first,
    histogram,
    merge_parts,
    share_histogram,
    text,
)
from shardbeam.transforms.dataset.collectors.grids import GRID_BINS, count_grids
from shardbeam.transforms.dataset.example_findings import Finding, ObjectColumns
from shardbeam.transforms.examples.features import FeatureKind
from shardbeam.transforms.images.measures import PICTURE_KINDS

# Numbers of objects above this one are rounded down to three digits.
_EXACT_OBJECTS = 1_000

# 0.001 %, 0.002 %, 0.005 %, ... 50 %.
_SHARES = (0, *(digit * 10**zeros for zeros in range(1, 6) for digit in (1, 2, 5)))
# {histogram: lower bounds of its bins}
OBJECT_BINS: Mapping[str, tuple[int, ...]] = {
    "objects_per_image": (0, 1, 2, 3, 4, 6, 10, 16, 25, 40, 63, 100, 160, 250, 400, 630, 1000),
    # Pixels²: each is three times the one before, so that 32² and 96² are among them.
    "areas": (0, 1, 4, 13, 38, 114, 341, *(32**2 * 3**step for step in range(9))),
    # Millionths of the image's area.
    "relative_areas": _SHARES,
    "mask_areas": _SHARES,
    **GRID_BINS,
}
# The areas of COCO's evaluation (pycocotools, `Params.areaRng`), in pixels².
_AREA_NAMES = ("small", "medium", "large")
_AREA_BOUNDS = (0, 32**2, 96**2)

# Objects that are collected before they are added up.
_MAX_OBJECTS = 100_000

_BOX_KEYS = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))


class ObjectStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the objects in a split, or in a part of one.

    Attributes:
        objects: Number of objects.
        crowds: Objects that are crowds.
        objects_by_class: `{class: objects}`.
        objects_per_image: Histogram of the number of objects of each image, if images have objects.
        object_areas: `{small, medium, large: objects}`, by their `area` in pixels² of the stored
            image; an object without it counts by the area of its box.
        areas: Histogram of the same areas in pixels².
        relative_areas: Histogram of the boxes' areas, in millionths of the image's.
        keypoints: `{keypoint: {visibility: objects}}`: 0 not labelled, 1 hidden, 2 visible.
        masks: Number of objects' masks.
        empty_masks: Masks without a pixel.
        mask_areas: Histogram of the other masks' areas, in millionths of the image's.
        images_by_objects: `{objects: images}`, exact up to 1,000 objects.
        images_by_finding: `{kind: images}` of findings (`dataset.example_findings`). An
            image counts once, also if each of its objects has its own Example.
        objects_by_finding: `{kind: {class: objects}}` of findings of objects.
        same_boxes: `{class: {class: pairs}}` of boxes of two classes that are nearly the same; each
            pair of classes is there once, in alphabetical order. Like `count_of_pairs`, it has
            `MAX_PAIRS` pairs at most.
        box_centres: Grid (`grids`) of the boxes by their centres, crowds among them. Columns
            and rows are equal parts of the image's width and height.
        box_sizes: Grid of the boxes by their widths (columns) and heights (rows), each as a share
            of the image's; columns and rows have the bounds `GRID_BINS`.
        box_centres_by_class: `{class: grid}`: of every class that occurs, until `keep_largest`
            chooses some.
        box_sizes_by_class: The same of their sizes.
    """

    objects: int = 0
    crowds: int = 0
    objects_by_class: ByName = {}
    objects_per_image: ByName = {}
    object_areas: ByName = {}
    areas: ByName = {}
    relative_areas: ByName = {}
    keypoints: dict[str, ByName] = {}
    masks: int = 0
    empty_masks: int = 0
    mask_areas: ByName = {}
    images_by_objects: ByName = {}
    images_by_finding: ByName = {}
    objects_by_finding: dict[str, ByName] = {}
    same_boxes: dict[str, ByName] = {}
    box_centres: str = ""
    box_sizes: str = ""
    box_centres_by_class: dict[str, str] = {}
    box_sizes_by_class: dict[str, str] = {}


class ObjectsCollector(Collector):
    """Counts the objects of Examples, and fills in the findings of each Example."""

    NAME = "objects"
    VERSION = counted_version(ObjectStatistics, OBJECT_BINS)
    KEYS = {  # noqa: RUF012  # Never changed.
        **dict.fromkeys(("image/width", "image/height"), FeatureKind.INT64),
        **dict.fromkeys(_BOX_KEYS, FeatureKind.FLOAT),
        "image/object/keypoint/text": FeatureKind.BYTES,
        "image/object/keypoint/visibility": FeatureKind.INT64,
        "annotation/bbox": FeatureKind.FLOAT,
        **{
            f"{prefix}/{key}": kind
            for prefix in ("image/object", "annotation")
            for key, kind in (
                *(("class/text", FeatureKind.BYTES), ("class/label", FeatureKind.INT64)),
                *(("area", FeatureKind.FLOAT), ("is_crowd", FeatureKind.INT64)),
                ("mask", FeatureKind.BYTES),
            )
        },
    }
    NEEDS = PICTURE_KINDS
    COLUMNS = ("findings",)

    def __init__(self, facts: ShardFacts) -> None:
        super().__init__(facts)
        self._left_out = facts.left_out(self.KEYS)
        self._total = ObjectStatistics()
        # {number of an Example: {kind: greatest strength}} of those with findings
        self._strengths: dict[int, dict[str, int]] = {}
        # How many Examples and images were added, and the kinds found in each of the images.
        self._examples = self._image = 0
        self._kinds: set[tuple[int, str]] = set()
        self._start()

    def _start(self) -> None:
        # Values of the Examples since the last `_fold`.
        self._crowds = 0
        self._names: list[bytes] = []
        self._objects_per_image: Counter[int] = Counter()
        # Examples hold 32-bit floats: use the same here, so that a recount gives the same.
        self._areas = array("f")
        self._objects = ObjectColumns()
        # Each box in pixels as a fraction of its image; 0 for boxes that cannot be used.
        self._shares: list[float] = []
        self._keypoints: Counter[tuple[bytes, int]] = Counter()
        self._masks: list[tuple[int, int]] = []
        # The image of each Example.
        self._images_of_examples: list[int] = []
        self._images_by_finding: Counter[str] = Counter()
        self._objects_by_finding: Counter[tuple[str, bytes]] = Counter()
        self._same_boxes: Counter[tuple[bytes, bytes]] = Counter()

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        if len(self._images_of_examples) == MAX_COLLECTED or len(self._objects) >= _MAX_OBJECTS:
            self._fold()
        values = item.values
        if self._left_out:
            values = {key: each for key, each in values.items() if key not in self._left_out}
        if "image/object/bbox/xmin" in values:
            self._add_objects(values)
        elif "annotation/bbox" in values:
            self._add_annotation(values)
        self._image += item.is_first
        known = item.known
        for kind in PICTURE_KINDS:
            if kind in known:
                self._add_finding(self._examples, Finding(kind, known[kind]), image=self._image)
        self._images_of_examples.append(self._image)
        self._examples += 1

    def _add_objects(self, values: Values) -> None:
        get = values.get
        names = object_names(values)
        boxes = len(names)
        self._names += names
        self._objects_per_image[boxes] += 1
        if not self._objects.add(self._examples, values):
            self._shares += [0.0] * boxes
        areas = get("image/object/area", ())
        if len(areas) != boxes:
            areas = _areas_of_boxes(values)
        self._areas.extend(areas)
        crowds = get("image/object/is_crowd", ())
        self._crowds += len(crowds) - crowds.count(0) if crowds else 0
        visibilities = get("image/object/keypoint/visibility", ())
        if visibilities:
            points = get("image/object/keypoint/text", ())
            if len(points) != len(visibilities):
                points = [b""] * len(visibilities)
            self._keypoints.update(zip(points, visibilities, strict=True))
        if masks := get("image/object/mask/area"):
            width, height = _size(values)
            self._masks += [(area, width * height) for area in masks]

    def _add_annotation(self, values: Values) -> None:
        """Counts the only object of an Example; its box is x, y, width, height in pixels."""
        width, height = _size(values)
        self._names += object_names(values)
        self._objects_per_image[1] += 1
        self._objects.add(self._examples, values)
        box = array("f", values["annotation/bbox"])
        box_width, box_height = box[2:] if len(box) == 4 else (0.0, 0.0)
        sides = (box_width / width, box_height / height) if width and height else (0.0, 0.0)
        self._shares.append(math.prod(array("f", sides)))
        self._areas.extend(values.get("annotation/area") or (box_width * box_height,))
        self._crowds += bool(first(values.get("annotation/is_crowd"), 0))
        self._masks += [(area, width * height) for area in values.get("annotation/mask/area", ())]

    def _add_finding(self, example: int, finding: Finding, *, image: int) -> None:
        kind = finding.kind
        strengths = self._strengths.setdefault(example, {})
        strengths[kind] = max(finding.strength, strengths.get(kind, 0))
        if (image, kind) not in self._kinds:
            self._kinds.add((image, kind))
            self._images_by_finding[kind] += 1
        if finding.other:
            self._same_boxes[finding.name, finding.other] += 1
        elif finding.name:
            self._objects_by_finding[kind, finding.name] += 1

    def finish(self) -> ObjectStatistics:
        """Completes the findings of each Example, by kind, and returns the counts."""
        self._fold()
        findings = self.columns["findings"] = [()] * self._examples
        for number, strengths in self._strengths.items():
            findings[number] = [
                {"kind": kind, "strength": strength} for kind, strength in sorted(strengths.items())
            ]
        return self._total

    def _fold(self) -> None:
        """Adds the collected values to the total, and forgets them."""
        if self._images_of_examples:
            before = self._examples - len(self._images_of_examples)
            for example, finding in self._objects.find():
                image = self._images_of_examples[example - before]
                self._add_finding(example, finding, image=image)
            self._total = merge_parts([self._total, self._count()], kind=ObjectStatistics)
            self._start()

    def _count(self) -> ObjectStatistics:
        shown = [area / pixels for area, pixels in self._masks if area and pixels]
        areas = np.frombuffer(self._areas, np.float32)
        boxes, names = self._objects.read()
        texts = {name: text(name) for name in set(names)}
        shares = np.concatenate([self._objects.shares(boxes), self._shares])
        bins = OBJECT_BINS
        return ObjectStatistics(
            objects=len(self._names),
            crowds=self._crowds,
            objects_by_class=count_names(Counter(self._names)),
            objects_per_image=histogram(self._objects_per_image, bounds=bins["objects_per_image"]),
            object_areas=count_bins(areas, _AREA_BOUNDS, names=_AREA_NAMES),
            areas=count_bins(areas, bins["areas"], names=map(str, bins["areas"])),
            relative_areas=share_histogram(shares, bounds=bins["relative_areas"]),
            keypoints=add_up_pairs(
                ((text(name), str(visibility)), count)
                for (name, visibility), count in self._keypoints.items()
            ),
            masks=len(self._masks),
            empty_masks=sum(not area for area, _ in self._masks),
            mask_areas=share_histogram(np.array(shown, np.float64), bounds=bins["mask_areas"]),
            images_by_objects=_round_objects(self._objects_per_image),
            images_by_finding=dict(self._images_by_finding),
            objects_by_finding=add_up_pairs(
                ((kind, text(name)), count)
                for (kind, name), count in self._objects_by_finding.items()
            ),
            same_boxes=cut_pairs(
                add_up_pairs(
                    ((text(one), text(other)), count)
                    for (one, other), count in self._same_boxes.items()
                )
            ),
            **count_grids(boxes, [texts[name] for name in names])._asdict(),
        )


def object_names(values: Values) -> Sequence[bytes]:
    """Returns the class of each object of an Example; empty names where there are too few."""
    names: Sequence[bytes]
    if (boxes := values.get("image/object/bbox/xmin")) is not None:
        names = values.get("image/object/class/text", ())
        if len(names) != len(boxes):
            # Another program wrote this Example.
            names = [*names[: len(boxes)], *[b""] * (len(boxes) - len(names))]
        return names
    if "annotation/bbox" in values:
        names = values.get("annotation/class/text") or (b"",)
        return names
    return ()


def _size(values: Values) -> tuple[int, int]:
    return first(values.get("image/width"), 0), first(values.get("image/height"), 0)


def _areas_of_boxes(values: Values) -> list[float]:
    """Returns the area of each box in pixels²; 0 if it cannot be used."""
    width, height = _size(values)
    corners = [array("f", values.get(key, ())) for key in _BOX_KEYS]
    if any(len(corner) != len(corners[0]) for corner in corners):
        return [0.0] * len(corners[0])
    return [
        (xmax - xmin) * (ymax - ymin) * width * height
        for xmin, ymin, xmax, ymax in zip(*corners, strict=True)
    ]


def _round_objects(images: Mapping[int, int]) -> ByName:
    return add_up((_round_number(objects), count) for objects, count in images.items())


def _round_number(objects: int) -> str:
    unit = 10 ** max(0, len(str(objects)) - 3) if objects > _EXACT_OBJECTS else 1
    return str(objects // unit * unit)
