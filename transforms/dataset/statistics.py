"""Statistics of a split, counted while it is written, or from the Examples of existing files.

All counts are integers, so that their sums do not depend on the order. Histograms have fixed bins
(`BINS`): a bin is named by its lower bound, which it includes, and ends below the next bound.

Only `count_of_pairs` could grow without bound. If there are more than `MAX_PAIRS` pairs of classes,
those with the smallest digests are kept. A pair that the sum keeps was kept in every part, too, so
its count is exact and does not depend on the order.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.transforms.core.counts import Count, sum_counts
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.dataset.corrections import first_corrections
from shardbeam.transforms.dataset.example_findings import Finding, ObjectColumns
from shardbeam.transforms.examples.features import FeatureKind, FeatureSpec

# Increase it when a change would count the same Examples differently.
STATISTICS_VERSION = 2

MAX_PAIRS = 5_000
# If an image has more classes, only its first ones are paired.
MAX_CLASSES_PAIRED = 100
# Numbers of objects above this one are rounded down to three digits.
_EXACT_OBJECTS = 1_000

_SIDES = (0, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_AREAS = (
    *(0, 100, 1_000, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000, 750_000, 900_000),
)
# {histogram: lower bounds of its bins}
BINS: Mapping[str, tuple[int, ...]] = {
    # Bytes: 0, 1000, 2000, 5000, 10,000, ... 1,000,000,000.
    "example_bytes": (
        *(0, *(digit * 10**zeros for zeros in range(3, 9) for digit in (1, 2, 5))),
        10**9,
    ),
    # Pixels.
    "widths": _SIDES,
    "heights": _SIDES,
    # Thousandths of width / height: 1000 is a square.
    "aspects": (0, 250, 333, 500, 666, 750, 1000, 1001, 1333, 1500, 2000, 3000, 4000),
    "objects_per_image": (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500),
    # Millionths of the image's area.
    "relative_areas": _AREAS,
    "mask_areas": _AREAS,
    "caption_words": (0, 1, 2, 3, 5, 8, 10, 12, 15, 20, 30, 50, 100, 200),
    "caption_characters": (0, 1, 10, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500, 1000),
}
_MILLION = 1_000_000

# The areas of COCO's evaluation (pycocotools, `Params.areaRng`), in pixels².
_AREA_NAMES = ("small", "medium", "large")
_AREA_BOUNDS = (0, 32**2, 96**2)

# Examples whose values are collected before they are added up, and objects.
_FOLDED_EXAMPLES, _FOLDED_OBJECTS = 10_000, 100_000

# `{default key: values}`, like `examples.encode.annotated.Values`.
_Values: TypeAlias = Mapping[str, Sequence[Any]]
_Counts: TypeAlias = dict[str, int]
_T = TypeVar("_T")

# {default key: the kind of the values that are counted}
COUNTED_KINDS = {
    "image/encoded": FeatureKind.BYTES,
    "image/format": FeatureKind.BYTES,
    "image/width": FeatureKind.INT64,
    "image/height": FeatureKind.INT64,
    "image/class/text": FeatureKind.BYTES,
    "image/class/label": FeatureKind.INT64,
    "image/caption": FeatureKind.BYTES,
    "image/segmentation/class/encoded": FeatureKind.BYTES,
    "image/panoptic/category_mask": FeatureKind.BYTES,
    **{f"image/object/bbox/{side}": FeatureKind.FLOAT for side in ("xmin", "ymin", "xmax", "ymax")},
    "image/object/class/text": FeatureKind.BYTES,
    "image/object/class/label": FeatureKind.INT64,
    "image/object/area": FeatureKind.FLOAT,
    "image/object/is_crowd": FeatureKind.INT64,
    "image/object/mask": FeatureKind.BYTES,
    "image/object/keypoint/text": FeatureKind.BYTES,
    "image/object/keypoint/visibility": FeatureKind.INT64,
    "annotation/bbox": FeatureKind.FLOAT,
    "annotation/class/text": FeatureKind.BYTES,
    "annotation/class/label": FeatureKind.INT64,
    "annotation/area": FeatureKind.FLOAT,
    "annotation/is_crowd": FeatureKind.INT64,
    "annotation/mask": FeatureKind.BYTES,
}
# Keys of masks and maps that exist only for the statistics.
_NEVER_WRITTEN = (
    *("image/object/mask/area", "annotation/mask/area"),
    "image/segmentation/class/pixels",
)


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the images, objects and classes in a split, or in a part of one.

    If each object has its own Example (`example_per: annotation`), an image counts once for each of
    its Examples.

    Attributes:
        examples: Number of Examples.
        num_bytes: Bytes of the serialized Examples.
        example_bytes: Histogram of the Examples' bytes.
        images: Examples with an image.
        image_bytes: Bytes of the encoded images.
        formats: `{format: images}`.
        width_range: The smallest and the greatest width in pixels; empty without images.
        height_range: The smallest and the greatest height in pixels; empty without images.
        widths: Histogram of the images' widths.
        heights: Histogram of the images' heights.
        aspects: Histogram of width / height in thousandths.
        unannotated: Images without a label, object, caption or map.
        labels: Labels of whole images.
        objects: Number of objects.
        crowds: Objects that are crowds.
        images_by_class: `{class: images}`: the images with the class as a label, as the class of an
            object, or in their map.
        objects_by_class: `{class: objects}`.
        objects_per_image: Histogram of the number of objects of each image, if images have objects.
        object_areas: `{small, medium, large: objects}`, by their `area` in pixels² of the stored
            image; an object without it counts by the area of its box.
        relative_areas: Histogram of the boxes' areas, in millionths of the image's.
        pairs: The number of pairs of classes in an image, summed over all images.
        count_of_pairs: `{class: {class: images}}` of at most `MAX_PAIRS` pairs; each pair is there
            once, in alphabetical order.
        keypoints: `{keypoint: {visibility: objects}}`: 0 not labelled, 1 hidden, 2 visible.
        masks: Number of objects' masks.
        empty_masks: Masks without a pixel.
        mask_areas: Histogram of the other masks' areas, in millionths of the image's.
        pixels_by_class: `{class: pixels}` of maps of classes or segments; a value that no class has
            (0 for the background, 255 for ignored pixels) is named by its number.
        images_by_objects: `{objects: images}`, exact up to 1,000 objects.
        images_by_finding: `{kind: images}` of what is worth a look (`dataset.example_findings`). An
            image counts once, also if each of its objects has its own Example.
        objects_by_finding: `{kind: {class: objects}}` of findings of objects.
        same_boxes: `{class: {class: pairs}}` of boxes of two classes that are nearly the same; each
            pair of classes is there once, in alphabetical order. Like `count_of_pairs`, it has
            `MAX_PAIRS` pairs at most.
        captions: Number of captions.
        caption_words: Histogram of the captions' words, separated by white space.
        caption_characters: Histogram of the captions' characters.
    """

    examples: int = 0
    num_bytes: int = 0
    example_bytes: _Counts = {}
    images: int = 0
    image_bytes: int = 0
    formats: _Counts = {}
    width_range: tuple[int, ...] = ()
    height_range: tuple[int, ...] = ()
    widths: _Counts = {}
    heights: _Counts = {}
    aspects: _Counts = {}
    unannotated: int = 0
    labels: int = 0
    objects: int = 0
    crowds: int = 0
    images_by_class: _Counts = {}
    objects_by_class: _Counts = {}
    objects_per_image: _Counts = {}
    object_areas: _Counts = {}
    relative_areas: _Counts = {}
    pairs: int = 0
    count_of_pairs: dict[str, _Counts] = {}
    keypoints: dict[str, _Counts] = {}
    masks: int = 0
    empty_masks: int = 0
    mask_areas: _Counts = {}
    pixels_by_class: _Counts = {}
    images_by_objects: _Counts = {}
    images_by_finding: _Counts = {}
    objects_by_finding: dict[str, _Counts] = {}
    same_boxes: dict[str, _Counts] = {}
    captions: int = 0
    caption_words: _Counts = {}
    caption_characters: _Counts = {}


def merge_statistics(parts: Iterable[Statistics]) -> Statistics:
    """Adds up statistics; their order and grouping do not matter."""
    total: dict[str, Any] = msgspec.structs.asdict(Statistics())
    for part in parts:
        for name, value in msgspec.structs.asdict(part).items():
            if isinstance(value, int):
                total[name] += value
            elif isinstance(value, dict):
                _add_counts(value, to=total[name])
            elif value:
                sides = (*value, *total[name])
                total[name] = (min(sides), max(sides))
        for name in ("count_of_pairs", "same_boxes"):
            total[name] = _cut_pairs(total[name])
    return Statistics(**total)


class CountedStatistics(msgspec.Struct):
    """Statistics and corrections of shards on their way through a pipeline.

    Attributes:
        statistics: The statistics of one shard, or of several.
        corrected: The first corrections of each kind in these shards.
        shards: The count of these shards, by their keys.
    """

    statistics: Statistics
    corrected: tuple[Corrected, ...] = ()
    shards: Count = msgspec.field(default_factory=Count)


def merge_counted(parts: Iterable[CountedStatistics]) -> CountedStatistics:
    """Adds up counted statistics; their order and grouping do not matter."""
    counted = list(parts)
    return CountedStatistics(
        merge_statistics(part.statistics for part in counted),
        corrected=first_corrections(line for part in counted for line in part.corrected),
        shards=sum_counts(part.shards for part in counted),
    )


def _add_counts(counts: Mapping[str, Any], *, to: dict[str, Any]) -> None:
    for key, value in counts.items():
        if isinstance(value, dict):
            _add_counts(value, to=to.setdefault(key, {}))
        else:
            to[key] = to.get(key, 0) + value


def _cut_pairs(counts: dict[str, _Counts]) -> dict[str, _Counts]:
    if sum(map(len, counts.values())) <= MAX_PAIRS:
        return counts
    pairs = [(first, second) for first, seconds in counts.items() for second in seconds]
    kept: dict[str, _Counts] = {}
    for first, second in sorted(pairs, key=_pair_digest)[:MAX_PAIRS]:
        kept.setdefault(first, {})[second] = counts[first][second]
    return kept


@functools.lru_cache(maxsize=4 * MAX_PAIRS)
def _pair_digest(pair: tuple[str, str]) -> bytes:
    first, second = (name.encode() for name in pair)
    return hashlib.sha256(b"%d %b%b" % (len(first), first, second)).digest()


class StatisticsCounter:
    """Counts Examples one after another, in a single thread.

    Values are collected first, and put into bins for many Examples together, so that counting does
    not slow encoding down.

    Args:
        class_names: `{id: class}`, for maps, whose pixels are ids.
        extras: Features that the source adds. One whose key is counted here is left out if its
            values are of another kind.
    """

    def __init__(
        self, *, class_names: Mapping[int, str], extras: Iterable[FeatureSpec] = ()
    ) -> None:
        self._left_out = {
            spec.key
            for spec in extras
            if COUNTED_KINDS.get(spec.key, spec.kind) is not spec.kind or spec.key in _NEVER_WRITTEN
        }
        self._class_names = {number: name.encode() for number, name in class_names.items()}
        self._total = Statistics()
        self._strengths: dict[int, dict[str, int]] = {}
        # How many Examples and images were added, and the kinds found in each of the images.
        self._examples = self._image = 0
        self._kinds: set[tuple[int, str]] = set()
        self._start()

    def _start(self) -> None:
        # Values of the Examples since the last `_fold`.
        self._example_bytes: list[int] = []
        self._image_bytes = 0
        self._images: Counter[tuple[bytes, int, int]] = Counter()
        self._unannotated = 0
        self._labels = 0
        self._crowds = 0
        self._class_sets: Counter[frozenset[bytes]] = Counter()
        self._names: list[bytes] = []
        self._objects_per_image: Counter[int] = Counter()
        # Examples hold 32-bit floats: use the same here, so that a recount gives the same.
        self._areas = array("f")
        self._objects = ObjectColumns()
        # Each box in pixels as a fraction of its image; 0 for boxes that cannot be used.
        self._shares: list[float] = []
        self._keypoints: Counter[tuple[bytes, int]] = Counter()
        self._masks: list[tuple[int, int]] = []
        self._pixels: Counter[int] = Counter()
        self._captions: list[bytes] = []
        # The image of each Example.
        self._images_of_examples: list[int] = []
        self._images_by_finding: Counter[str] = Counter()
        self._objects_by_finding: Counter[tuple[str, bytes]] = Counter()
        self._same_boxes: Counter[tuple[bytes, bytes]] = Counter()

    def add(
        self,
        values: _Values,
        *,
        num_bytes: int,
        image_bytes: int,
        of_picture: Iterable[Finding] = (),
        is_first: bool = True,
    ) -> None:
        """Counts an Example, and later what is worth a look in its objects.

        Args:
            values: `{default key: values}`, with values of the keys' kinds. Missing keys are not
                counted. Three keys are never written: `image/object/mask/area` and
                `annotation/mask/area` are the pixels of each mask, and
                `image/segmentation/class/pixels` is `(id, pixels)` for each class of a map.
            num_bytes: Length of the serialized Example.
            image_bytes: Length of its encoded image; 0 where there is none.
            of_picture: What is worth a look in its picture.
            is_first: Whether it is the first Example of its image.
        """
        if len(self._example_bytes) == _FOLDED_EXAMPLES or len(self._objects) >= _FOLDED_OBJECTS:
            self._fold()
        if self._left_out:
            values = {key: each for key, each in values.items() if key not in self._left_out}
        get = values.get
        self._example_bytes.append(num_bytes)
        width, height = _first(get("image/width"), 0), _first(get("image/height"), 0)
        self._image_bytes += image_bytes
        if image_bytes:
            self._images[_first(get("image/format"), b""), width, height] += 1
        names: Sequence[bytes] = ()
        if (boxes := get("image/object/bbox/xmin")) is not None:
            names = self._add_objects(values, width=width, height=height, boxes=len(boxes))
        elif "annotation/bbox" in values:
            names = self._add_annotation(values, width=width, height=height)
        labels = get("image/class/text", ())
        self._labels += len(labels)
        mapped = []
        for number, pixels in get("image/segmentation/class/pixels", ()):
            self._pixels[number] += pixels
            if number in self._class_names:
                mapped.append(self._class_names[number])
        if names or labels or mapped:
            self._class_sets[frozenset((*names, *labels, *mapped))] += 1
        self._image += is_first
        for finding in of_picture:
            self._add_finding(self._examples, finding, image=self._image)
        self._images_of_examples.append(self._image)
        self._examples += 1
        captions = get("image/caption", ())
        self._captions += captions
        if image_bytes and not (
            names or labels or captions or "image/segmentation/class/encoded" in values
        ):
            self._unannotated += 1

    def _add_objects(
        self, values: _Values, *, width: int, height: int, boxes: int
    ) -> Sequence[bytes]:
        get = values.get
        names: Sequence[bytes] = get("image/object/class/text", ())
        if len(names) != boxes:
            # Another program wrote this Example.
            names = [*names[:boxes], *[b""] * (boxes - len(names))]
        self._names += names
        self._objects_per_image[boxes] += 1
        if not self._objects.add(self._examples, values):
            self._shares += [0.0] * boxes
        areas = get("image/object/area", ())
        if len(areas) != boxes:
            areas = _areas_of_boxes(values, width=width, height=height)
        self._areas.extend(areas)
        crowds = get("image/object/is_crowd", ())
        self._crowds += len(crowds) - crowds.count(0) if crowds else 0
        visibilities = get("image/object/keypoint/visibility", ())
        if visibilities:
            points = get("image/object/keypoint/text", ())
            if len(points) != len(visibilities):
                points = [b""] * len(visibilities)
            self._keypoints.update(zip(points, visibilities, strict=True))
        self._masks += [(area, width * height) for area in get("image/object/mask/area", ())]
        return names

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

    def _add_annotation(self, values: _Values, *, width: int, height: int) -> Sequence[bytes]:
        """Counts the only object of an Example; its box is x, y, width, height in pixels."""
        names: Sequence[bytes] = values.get("annotation/class/text") or (b"",)
        self._names += names
        self._objects_per_image[1] += 1
        self._objects.add(self._examples, values)
        box = array("f", values["annotation/bbox"])
        box_width, box_height = box[2:] if len(box) == 4 else (0.0, 0.0)
        sides = (box_width / width, box_height / height) if width and height else (0.0, 0.0)
        self._shares.append(math.prod(array("f", sides)))
        self._areas.extend(values.get("annotation/area") or (box_width * box_height,))
        self._crowds += bool(_first(values.get("annotation/is_crowd"), 0))
        self._masks += [(area, width * height) for area in values.get("annotation/mask/area", ())]
        return names

    def total(self) -> Statistics:
        """Returns the counts of all Examples so far."""
        self._fold()
        return self._total

    def strongest_findings(self) -> dict[int, dict[str, int]]:
        """Returns `{number of the Example: {kind: greatest strength}}` of those with findings.

        The first Example has the number 0.
        """
        self._fold()
        return self._strengths

    def _fold(self) -> None:
        """Adds the collected values to the total, and forgets them."""
        if self._example_bytes:
            before = self._examples - len(self._example_bytes)
            for example, finding in self._objects.find():
                image = self._images_of_examples[example - before]
                self._add_finding(example, finding, image=image)
            self._total = merge_statistics([self._total, self._count()])
            self._start()

    def _count(self) -> Statistics:
        widths: Counter[int] = Counter()
        heights: Counter[int] = Counter()
        aspects: Counter[int] = Counter()
        formats: Counter[str] = Counter()
        for (image_format, width, height), count in self._images.items():
            formats[_text(image_format)] += count
            widths[width] += count
            heights[height] += count
            aspects[1000 * width // height if height > 0 else 0] += count
        objects = Counter(self._names)
        classes = [(sorted(map(_text, names)), count) for names, count in self._class_sets.items()]
        images_by_class: Counter[str] = Counter()
        for names, count in classes:
            images_by_class.update(dict.fromkeys(names, count))
        keypoints: dict[str, _Counts] = {}
        for (name, visibility), count in sorted(self._keypoints.items()):
            by_visibility = keypoints.setdefault(_text(name), {})
            by_visibility[str(visibility)] = by_visibility.get(str(visibility), 0) + count
        pixels: Counter[bytes] = Counter()
        for number, count in self._pixels.items():
            pixels[self._class_names.get(number, b"%d" % number)] += count
        texts = [_text(caption) for caption in self._captions]
        shown = [area / pixels for area, pixels in self._masks if area and pixels]
        return Statistics(
            examples=len(self._example_bytes),
            num_bytes=sum(self._example_bytes),
            example_bytes=_histogram("example_bytes", Counter(self._example_bytes)),
            images=sum(self._images.values()),
            image_bytes=self._image_bytes,
            formats=dict(formats),
            width_range=(min(widths), max(widths)) if widths else (),
            height_range=(min(heights), max(heights)) if heights else (),
            widths=_histogram("widths", widths),
            heights=_histogram("heights", heights),
            aspects=_histogram("aspects", aspects),
            unannotated=self._unannotated,
            labels=self._labels,
            objects=len(self._names),
            crowds=self._crowds,
            images_by_class=dict(images_by_class),
            objects_by_class=_by_name(objects),
            objects_per_image=_histogram("objects_per_image", self._objects_per_image),
            object_areas=_area_counts(self._areas),
            relative_areas=_share_histogram(
                "relative_areas", np.concatenate([self._objects.shares(), self._shares])
            ),
            pairs=sum(count * (len(names) * (len(names) - 1) // 2) for names, count in classes),
            count_of_pairs=_cut_pairs(_count_pairs(classes)),
            keypoints=keypoints,
            masks=len(self._masks),
            empty_masks=sum(not area for area, _ in self._masks),
            mask_areas=_share_histogram("mask_areas", np.array(shown, np.float64)),
            pixels_by_class=_by_name(pixels),
            images_by_objects=_round_objects(self._objects_per_image),
            images_by_finding=dict(self._images_by_finding),
            objects_by_finding=_by_first(
                ((kind, _text(name)), count)
                for (kind, name), count in self._objects_by_finding.items()
            ),
            same_boxes=_cut_pairs(
                _by_first(
                    ((_text(one), _text(other)), count)
                    for (one, other), count in self._same_boxes.items()
                )
            ),
            captions=len(texts),
            caption_words=_histogram("caption_words", Counter(len(text.split()) for text in texts)),
            caption_characters=_histogram("caption_characters", Counter(map(len, texts))),
        )


_BOX_KEYS = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))


def _first(values: Sequence[_T] | None, default: _T) -> _T:
    return values[0] if values else default


def _areas_of_boxes(values: _Values, *, width: int, height: int) -> list[float]:
    """Returns the area of each box in pixels²; 0 if it cannot be used."""
    corners = [array("f", values.get(key, ())) for key in _BOX_KEYS]
    if any(len(corner) != len(corners[0]) for corner in corners):
        return [0.0] * len(corners[0])
    return [
        (xmax - xmin) * (ymax - ymin) * width * height
        for xmin, ymin, xmax, ymax in zip(*corners, strict=True)
    ]


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _by_name(counts: Mapping[bytes, int]) -> _Counts:
    by_name: _Counts = {}
    for name, count in counts.items():
        by_name[_text(name)] = by_name.get(_text(name), 0) + count
    return by_name


def _by_first(counts: Iterable[tuple[tuple[str, str], int]]) -> dict[str, _Counts]:
    by_first: dict[str, _Counts] = {}
    for (first, second), count in counts:
        seconds = by_first.setdefault(first, {})
        seconds[second] = seconds.get(second, 0) + count
    return by_first


def _round_objects(images: Mapping[int, int]) -> _Counts:
    rounded: _Counts = {}
    for objects, count in images.items():
        unit = 10 ** max(0, len(str(objects)) - 3) if objects > _EXACT_OBJECTS else 1
        name = str(objects // unit * unit)
        rounded[name] = rounded.get(name, 0) + count
    return rounded


def _histogram(name: str, counts: Mapping[int, int]) -> _Counts:
    bounds = BINS[name]
    bins: _Counts = {}
    for value, count in counts.items():
        lower = str(bounds[max(bisect.bisect(bounds, value) - 1, 0)])
        bins[lower] = bins.get(lower, 0) + count
    return bins


def _share_histogram(name: str, shares: npt.NDArray[np.float64]) -> _Counts:
    bounds = BINS[name]
    return _count_bins(shares, [bound / _MILLION for bound in bounds], names=map(str, bounds))


def _area_counts(areas: array[float]) -> _Counts:
    return _count_bins(np.frombuffer(areas, np.float32), _AREA_BOUNDS, names=_AREA_NAMES)


def _count_bins(
    values: npt.NDArray[Any], bounds: Sequence[float], *, names: Iterable[str]
) -> _Counts:
    # NaN counts as 0.
    numbers = np.nan_to_num(values, nan=0.0)
    places = np.maximum(np.searchsorted(bounds, numbers, side="right") - 1, 0)
    counts = np.bincount(places, minlength=len(bounds)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def _count_pairs(classes: Iterable[tuple[Sequence[str], int]]) -> dict[str, _Counts]:
    counts: dict[str, _Counts] = {}
    for names, count in classes:
        for first, second in itertools.combinations(names[:MAX_CLASSES_PAIRED], 2):
            seconds = counts.setdefault(first, {})
            seconds[second] = seconds.get(second, 0) + count
    return counts


def most_frequent_pairs(statistics: Statistics) -> Iterator[tuple[str, str, int]]:
    """Yields the pairs of classes, the most frequent first: `(class, class, images)`."""
    pairs = [
        (-count, first, second)
        for first, seconds in statistics.count_of_pairs.items()
        for second, count in seconds.items()
    ]
    for negative, first, second in sorted(pairs):
        yield first, second, -negative
