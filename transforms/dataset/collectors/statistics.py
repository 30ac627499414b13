"""Statistics of a split, counted while it is written, or from the Examples of existing files.

All counts are integers, so that their sums do not depend on the order. Histograms have fixed bins
(`BINS`): a bin is named by its lower bound, which it includes, and ends below the next bound.
"""

# ruff: noqa: RUF012  # The fields of a struct are not shared.
from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from shardbeam.transforms.core.corrections import MOST_NAMED
from shardbeam.transforms.core.counts import Count, sum_counts
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.dataset.collectors.base import (
    MAX_COLLECTED,
    MAX_FACET_BYTES,
    MAX_FACET_VALUES,
    ByName,
    Collector,
    Item,
    ShardFacts,
    add_up,
    add_up_pairs,
    count_names,
    counted_version,
    cut_pairs,
    first,
    histogram,
    merge_parts,
    text,
)
from shardbeam.transforms.dataset.collectors.objects import (
    OBJECT_BINS,
    ObjectStatistics,
    object_names,
)
from shardbeam.transforms.examples.features import FeatureKind

# If an image has more classes, only its first ones are paired.
MAX_CLASSES_PAIRED = 100
# Finished statistics have grids of this many classes, those with most objects.
MAX_GRID_CLASSES = 50

# Histograms have bins of nearly equal ratios between their bounds.
_SIDES = (0, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
# A tenth of a power of ten apart, except for the smallest.
_TENTHS = (
    *(0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 63, 80),
    *(100, 126, 160, 200, 250, 320, 400, 500, 630, 800, 1000),
)
# {histogram: lower bounds of its bins}
BINS: Mapping[str, tuple[int, ...]] = {
    **OBJECT_BINS,
    # Bytes: 0, 1000, 2000, 5000, 10,000, ... 1,000,000,000.
    "example_bytes": (
        *(0, *(digit * 10**zeros for zeros in range(3, 9) for digit in (1, 2, 5))),
        10**9,
    ),
    # Pixels.
    "widths": _SIDES,
    "heights": _SIDES,
    # Thousandths of width / height: 1000 is a square.
    "aspects": (0, 250, 354, 500, 707, 1000, 1001, 1414, 2000, 2828, 4000),
    "caption_words": _TENTHS[: _TENTHS.index(200) + 1],
    "caption_characters": _TENTHS,
}


# Shardbeam's own keys, which no source adds.
OWN_KEYS = ("image/", "annotation/")
# Examples of other programs may all have different keys.
_MOST_REMEMBERED = 1_000

_Part = TypeVar("_Part")

_by_kind = operator.attrgetter("what", "source", "key")


class FacetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the texts that a source adds.

    Attributes:
        facets: `{key: {value: Examples}}` of keys with few and short values, one in each Example.
        facets_left_out: `{key: Examples}` of the other keys with texts.
    """

    facets: dict[str, ByName] = {}
    facets_left_out: ByName = {}


class FacetsCollector(Collector):
    """Counts the values of each key that is not Shardbeam's own and holds a text."""

    NAME = "facets"
    VERSION = counted_version(FacetStatistics, {"": (MAX_FACET_VALUES, MAX_FACET_BYTES)})

    def __init__(self, facts: ShardFacts) -> None:
        super().__init__(facts)
        self._total = FacetStatistics()
        # {keys of an Example: those that may be facets}
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._counts: Counter[tuple[str, bytes | None]] = Counter()

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        keys = tuple(item.values)
        found = self._keys.get(keys)
        if found is None:
            found = self._choose(keys)
        for key in found:
            values = item.values[key]
            if not values or not isinstance(values[0], bytes):
                continue
            # A table with a row for each object repeats what is said of the image.
            is_one = len(values) == 1 or values.count(values[0]) == len(values)
            is_short = is_one and len(values[0]) <= MAX_FACET_BYTES
            if not is_short:
                self._counts[key, None] += 1
            elif values[0]:
                self._counts[key, values[0]] += 1
        if len(self._counts) > MAX_COLLECTED:
            self._fold()

    def _choose(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        if len(self._keys) >= _MOST_REMEMBERED:
            self._keys.clear()
        found = self._keys[keys] = tuple(key for key in keys if not key.startswith(OWN_KEYS))
        return found

    def finish(self) -> FacetStatistics:
        """Returns the counts."""
        self._fold()
        return self._total

    def _fold(self) -> None:
        """Adds the counts to the total, and forgets them."""
        facets: dict[str, ByName] = {}
        left_out: Counter[str] = Counter()
        for (key, value), count in self._counts.items():
            try:
                name = value.decode() if value is not None else None
            except UnicodeDecodeError:
                name = None
            if name is None:
                left_out[key] += count
            else:
                facets.setdefault(key, {})[name] = count
        counted = FacetStatistics(facets=facets, facets_left_out=dict(left_out))
        self._total = merge_parts([self._total, counted], kind=FacetStatistics)
        self._counts.clear()


class Statistics(ObjectStatistics, frozen=True, kw_only=True):
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
        images_by_class: `{class: images}`: the images with the class as a label, as the class of an
            object, or in their map.
        pairs: The number of pairs of classes in an image, summed over all images.
        count_of_pairs: `{class: {class: images}}` of at most `MAX_PAIRS` pairs; each pair is there
            once, in alphabetical order.
        pixels_by_class: `{class: pixels}` of maps of classes or segments; a value that no class has
            (0 for the background, 255 for ignored pixels) is named by its number.
        captions: Number of captions.
        caption_words: Histogram of the captions' words, separated by white space.
        caption_characters: Histogram of the captions' characters.
        facets: `{key: {value: Examples}}` of texts that a source adds (`facets`).
        facets_left_out: `{key: Examples}` of those with too many or too long values.
    """

    examples: int = 0
    num_bytes: int = 0
    example_bytes: ByName = {}
    images: int = 0
    image_bytes: int = 0
    formats: ByName = {}
    width_range: tuple[int, ...] = ()
    height_range: tuple[int, ...] = ()
    widths: ByName = {}
    heights: ByName = {}
    aspects: ByName = {}
    unannotated: int = 0
    labels: int = 0
    images_by_class: ByName = {}
    pairs: int = 0
    count_of_pairs: dict[str, ByName] = {}
    pixels_by_class: ByName = {}
    captions: int = 0
    caption_words: ByName = {}
    caption_characters: ByName = {}
    facets: dict[str, ByName] = {}
    facets_left_out: ByName = {}


def merge_statistics(parts: Iterable[msgspec.Struct]) -> Statistics:
    """Adds up statistics; their order and grouping do not matter."""
    return merge_parts(parts, kind=Statistics)


def keep_largest_grids(splits: Mapping[str, Statistics]) -> dict[str, Statistics]:
    """Keeps the grids of the classes with most objects in all splits, the same in each split.

    Args:
        splits: `{split: statistics}`, complete.
    """
    objects = add_up(each for split in splits.values() for each in split.objects_by_class.items())
    kept = sorted(objects, key=lambda name: (-objects[name], name))[:MAX_GRID_CLASSES]

    def cut(grids: Mapping[str, str]) -> dict[str, str]:
        return {name: grids[name] for name in kept if name in grids}

    return {
        name: msgspec.structs.replace(
            split,
            box_centres_by_class=cut(split.box_centres_by_class),
            box_sizes_by_class=cut(split.box_sizes_by_class),
        )
        for name, split in splits.items()
    }


class Collected(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a collector has counted in a shard.

    Attributes:
        version: Its version.
        statistics: The fields that it counts; None if it only fills columns of the index.
    """

    version: str
    statistics: Statistics | None = None


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


def first_corrections(lines: Iterable[Corrected]) -> tuple[Corrected, ...]:
    """Chooses the first corrections of each kind, by source and key, whatever their order is.

    The corrections of one image keep their order: they all come from one shard.
    """
    kinds: Counter[str] = Counter()
    first = []
    for line in sorted(lines, key=_by_kind):
        kinds[line.what] += 1
        if kinds[line.what] <= MOST_NAMED:
            first.append(line)
    return tuple(first)


def merge_counted(parts: Iterable[CountedStatistics]) -> CountedStatistics:
    """Adds up counted statistics; their order and grouping do not matter."""
    counted = list(parts)
    return CountedStatistics(
        merge_statistics(part.statistics for part in counted),
        corrected=first_corrections(line for part in counted for line in part.corrected),
        shards=sum_counts(part.shards for part in counted),
    )


class StatisticsCollector(Collector):
    """Counts images, classes and captions.

    Values are collected first, and put into bins for many Examples together.
    """

    NAME = "statistics"
    VERSION = counted_version(Statistics, BINS)
    KEYS = {
        **dict.fromkeys(
            (
                *("image/encoded", "image/format", "image/class/text", "image/caption"),
                *("image/segmentation/class/encoded", "image/panoptic/category_mask"),
                *("image/object/class/text", "annotation/class/text"),
            ),
            FeatureKind.BYTES,
        ),
        **dict.fromkeys(
            (
                *("image/width", "image/height", "image/class/label"),
                *("image/object/class/label", "annotation/class/label"),
            ),
            FeatureKind.INT64,
        ),
        **dict.fromkeys(("image/object/bbox/xmin", "annotation/bbox"), FeatureKind.FLOAT),
    }

    def __init__(self, facts: ShardFacts) -> None:
        super().__init__(facts)
        self._left_out = facts.left_out(self.KEYS)
        self._class_names = {number: name.encode() for number, name in facts.map_names.items()}
        self._total = Statistics()
        self._start()

    def _start(self) -> None:
        # Values of the Examples since the last `_fold`.
        self._example_bytes: list[int] = []
        self._image_bytes = 0
        self._images: Counter[tuple[bytes, int, int]] = Counter()
        self._unannotated = 0
        self._labels = 0
        self._class_sets: Counter[frozenset[bytes]] = Counter()
        self._pixels: Counter[int] = Counter()
        self._captions: list[bytes] = []

    def add(self, item: Item) -> None:
        """Adds the next Example."""
        if len(self._example_bytes) == MAX_COLLECTED:
            self._fold()
        values = item.values
        if self._left_out:
            values = {key: each for key, each in values.items() if key not in self._left_out}
        get = values.get
        self._example_bytes.append(item.length)
        if item.image_bytes:
            self._image_bytes += item.image_bytes
            width, height = first(get("image/width"), 0), first(get("image/height"), 0)
            self._images[first(get("image/format"), b""), width, height] += 1
        names = object_names(values)
        labels = get("image/class/text", ())
        self._labels += len(labels)
        mapped = []
        for number, pixels in get("image/segmentation/class/pixels", ()):
            self._pixels[number] += pixels
            if number in self._class_names:
                mapped.append(self._class_names[number])
        if names or labels or mapped:
            self._class_sets[frozenset((*names, *labels, *mapped))] += 1
        captions = get("image/caption", ())
        self._captions += captions
        if item.image_bytes and not (
            names or labels or captions or "image/segmentation/class/encoded" in values
        ):
            self._unannotated += 1

    def finish(self) -> Statistics:
        """Returns the counts."""
        self._fold()
        return self._total

    def _fold(self) -> None:
        """Adds the collected values to the total, and forgets them."""
        if self._example_bytes:
            self._total = merge_statistics([self._total, self._count()])
            self._start()

    def _count(self) -> Statistics:
        widths: Counter[int] = Counter()
        heights: Counter[int] = Counter()
        aspects: Counter[int] = Counter()
        formats: Counter[str] = Counter()
        for (image_format, width, height), count in self._images.items():
            formats[text(image_format)] += count
            widths[width] += count
            heights[height] += count
            aspects[1000 * width // height if height > 0 else 0] += count
        texts = {name: text(name) for name in set().union(*self._class_sets)}
        # {number of images: the sets of classes that occur in just that many}
        sets: dict[int, list[list[str]]] = {}
        for names, images in self._class_sets.items():
            sets.setdefault(images, []).append(sorted([texts[name] for name in names]))
        pixels: Counter[bytes] = Counter()
        for number, count in self._pixels.items():
            pixels[self._class_names.get(number, b"%d" % number)] += count
        captions = [text(caption) for caption in self._captions]
        words = Counter(len(caption.split()) for caption in captions)
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
            images_by_class=add_up(_count_in_sets(sets, dict.fromkeys)),
            pairs=sum(
                images * math.comb(len(names), 2) for images, same in sets.items() for names in same
            ),
            count_of_pairs=cut_pairs(add_up_pairs(_count_in_sets(sets, _pair))),
            pixels_by_class=count_names(pixels),
            captions=len(captions),
            caption_words=_histogram("caption_words", words),
            caption_characters=_histogram("caption_characters", Counter(map(len, captions))),
        )


def _histogram(name: str, counts: Mapping[int, int]) -> ByName:
    return histogram(counts, bounds=BINS[name])


def _count_in_sets(
    sets: Mapping[int, Iterable[Sequence[str]]], find: Callable[[Sequence[str]], Iterable[_Part]]
) -> Iterator[tuple[_Part, int]]:
    """Counts the images that have a part of a set of classes, such as a class or a pair.

    Most sets occur in one image, so those that occur in equally many are counted together.

    Args:
        sets: `{number of images: the sets of classes that occur in just that many}`.
        find: Returns the parts of a set.
    """
    for images, same in sets.items():
        for part, number in Counter(itertools.chain.from_iterable(map(find, same))).items():
            yield part, images * number


def _pair(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    return itertools.combinations(names[:MAX_CLASSES_PAIRED], 2)


def most_frequent_pairs(statistics: Statistics) -> Iterator[tuple[str, str, int]]:
    """Yields the pairs of classes, the most frequent first: `(class, class, images)`."""
    pairs = [
        (-count, one, other)
        for one, others in statistics.count_of_pairs.items()
        for other, count in others.items()
    ]
    for negative, one, other in sorted(pairs):
        yield one, other, -negative
