"""What is counted over the Examples of a shard, while it is written or later from the shard itself.

A collector is a class in a module of this folder, and a row in the table of `collect.py`. It fills
columns of the shard's index, or counts fields of the statistics, or both. The code that writes,
reuses or reads shards knows none of them by name.
"""

from __future__ import annotations

import abc
import bisect
import functools
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.transforms.dataset.collectors.grids import GRIDS, GridSums, place_in_bins
from shardbeam.transforms.examples.features import FeatureKind, FeatureSpec
from shardbeam.transforms.images.measures import MEASURES_VERSION

# `{default key: values}`, like `examples.encode.annotated.Values`.
Values: TypeAlias = Mapping[str, Sequence[Any]]
# `{name of a class, a bin or something else: count}`
ByName: TypeAlias = dict[str, int]
_T = TypeVar("_T")
_Counted = TypeVar("_Counted", bound=msgspec.Struct)

# The version of `statistics.json`. Increase it when a change would count the same Examples
# differently, or find something else in them. A new field needs no other version, because those
# that collectors have contain the names of their fields.
STATISTICS_VERSION = 4

# Only fields of pairs of classes could grow without bound. If there are more pairs, those with the
# smallest digests are kept. A pair that the sum keeps was kept in every part, too, so its count is
# exact and does not depend on the order.
MAX_PAIRS = 5_000
_PAIRS = ("count_of_pairs", "same_boxes")

# A key of texts with more distinct values, or with a longer one in UTF-8, is no facet. Other
# programs' Examples may have any number of keys: only the first ones by name are kept.
MAX_FACETS, MAX_FACET_VALUES, MAX_FACET_BYTES = 100, 50, 64

# Collectors collect the values of this many Examples before they add them up, so that counting does
# not slow encoding down.
MAX_COLLECTED = 10_000

_MILLION = 1_000_000


class Item(NamedTuple):
    """An Example that was just encoded, or that was read back.

    Attributes:
        key: The image's path relative to its source's root.
        source: Which input of the config it comes from.
        is_first: Whether it is the first Example of its image.
        offset: Where its record begins (`IndexRow.offset`).
        length: Length of the serialized Example in bytes.
        crc32c: Its CRC-32C.
        sha256: Digest of the stored image's bytes, hex; empty without an image.
        image_bytes: Length of the stored image; 0 without one.
        width: Its width in pixels; 0 without one.
        height: Its height.
        format: Its format; empty without an image.
        objects: The number of objects.
        values: `{default key: values}`, with values of the keys' kinds, also of keys that the
            config drops. These keys are never written: `image/object/mask/area` and
            `annotation/mask/area` are the pixels of each mask, `image/object/mask/box` and
            `annotation/mask/box` the box `(xmin, ymin, xmax, ymax)` around them, in pixels, and
            `image/segmentation/class/pixels` is `(id, pixels)` for each class of a map.
        known: What cannot be computed from `values`: the image's measures (`images.measures`), and
            the digest of its labels. It comes from the encoder, or from the shard's index.
    """

    key: str
    source: str
    is_first: bool
    offset: int
    length: int
    crc32c: int
    sha256: str
    image_bytes: int
    width: int
    height: int
    format: str
    objects: int
    values: Values
    known: Mapping[str, Any]


# An Example of which nothing is known.
NO_ITEM = Item("", "", True, 0, 0, 0, "", 0, 0, 0, "", 0, {}, {})


class ShardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What collectors have to know of a shard.

    Attributes:
        split: Its split.
        shard: Its number within the split.
        has_labels: Whether the dataset has a label map.
        map_names: `{id: class}` of the values in maps; empty if they are no ids of classes.
        extras: Features that the source adds. One whose key is counted is left out if its values
            are of another kind.
    """

    split: str = ""
    shard: int = 0
    has_labels: bool = True
    map_names: Mapping[int, str] = {}
    extras: tuple[FeatureSpec, ...] = ()

    def left_out(self, keys: Mapping[str, FeatureKind]) -> Collection[str]:
        """Returns the keys of extra features that are of another kind than in `keys`."""
        return {
            spec.key
            for spec in self.extras
            if keys.get(spec.key, spec.kind) is not spec.kind or spec.key in _NEVER_WRITTEN
        }


# Keys of masks and maps that exist only for the statistics.
_NEVER_WRITTEN = (
    *("image/object/mask/area", "annotation/mask/area"),
    *("image/object/mask/box", "annotation/mask/box"),
    "image/segmentation/class/pixels",
)


class Collector(abc.ABC):
    """Counts the Examples of a shard, one after another, in a single thread.

    Args:
        facts: The shard.

    Attributes:
        NAME: Its stable name.
        VERSION: Differs whenever it counts the same Examples differently: shards of another version
            are counted again.
        KEYS: `{default key: kind}` of the values that it reads.
        NEEDS: The names in `Item.known` that it uses. Where one cannot be found out from the stored
            Examples, a shard of another version is written again.
        COLUMNS: Its columns of the index.
    """

    NAME: str
    VERSION: str
    KEYS: Mapping[str, FeatureKind] = {}
    NEEDS: Sequence[str] = ()
    COLUMNS: Sequence[str] = ()

    def __init__(self, facts: ShardFacts) -> None:
        self.facts = facts
        self.columns: dict[str, list[Any]] = {name: [] for name in self.COLUMNS}

    @abc.abstractmethod
    def add(self, item: Item) -> None:
        """Adds the next Example."""

    def finish(self) -> msgspec.Struct | None:
        """Completes `columns`; returns a struct with the fields of `Statistics` that it counts."""
        return None


def first(values: Sequence[_T] | None, default: _T) -> _T:
    """Returns the first value, if there is one."""
    return values[0] if values else default


def text(name: bytes) -> str:
    """Decodes a name; bytes that are no UTF-8 are escaped."""
    return name.decode(errors="backslashreplace")


def add_up(counts: Iterable[tuple[str, int]]) -> ByName:
    """Adds up counts with the same name."""
    total: ByName = {}
    for name, count in counts:
        total[name] = total.get(name, 0) + count
    return total


def add_up_pairs(counts: Iterable[tuple[tuple[str, str], int]]) -> dict[str, ByName]:
    """Adds up counts with the same two names: `{first name: {second name: count}}`."""
    total: dict[str, ByName] = {}
    for (one, other), count in counts:
        others = total.setdefault(one, {})
        others[other] = others.get(other, 0) + count
    return total


def count_names(counts: Mapping[bytes, int]) -> ByName:
    """Returns counts by the text of each name."""
    return add_up((text(name), count) for name, count in counts.items())


def histogram(counts: Mapping[int, int], *, bounds: Sequence[int]) -> ByName:
    """Counts values in bins, which are named by their lower bounds.

    Args:
        counts: `{value: count}`.
        bounds: The lower bound of each bin.
    """
    return add_up(
        (str(bounds[max(bisect.bisect(bounds, value) - 1, 0)]), count)
        for value, count in counts.items()
    )


def share_histogram(shares: npt.NDArray[np.float64], *, bounds: Sequence[int]) -> ByName:
    """Counts shares in bins whose bounds are millionths."""
    return count_bins(shares, [bound / _MILLION for bound in bounds], names=map(str, bounds))


def count_bins(
    values: npt.NDArray[Any], bounds: Sequence[float], *, names: Iterable[str]
) -> ByName:
    """Counts values in bins with these lower bounds and names; NaN counts as 0."""
    counts = np.bincount(place_in_bins(values, bounds), minlength=len(bounds)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def merge_parts(parts: Iterable[msgspec.Struct], *, kind: type[_Counted]) -> _Counted:
    """Adds up counts; their order and grouping do not matter.

    Args:
        parts: Structs with some of the fields of `kind`, or all of them.
        kind: The struct of the sum.
    """
    total: dict[str, Any] = msgspec.structs.asdict(kind())
    grids = GridSums()
    for part in parts:
        for name, value in msgspec.structs.asdict(part).items():
            if isinstance(value, int):
                total[name] += value
            elif name in GRIDS:
                grids.add(name, value)
            elif isinstance(value, dict):
                _add_counts(value, to=total[name])
            elif value:
                sides = (*value, *total[name])
                total[name] = (min(sides), max(sides))
        for name in _PAIRS:
            if name in total:
                total[name] = cut_pairs(total[name])
        if "facets" in total:
            cut_facets(total["facets"], left_out=total["facets_left_out"])
    return kind(**{**total, **grids.sums()})


def _add_counts(counts: Mapping[str, Any], *, to: dict[str, Any]) -> None:
    for key, value in counts.items():
        if isinstance(value, dict):
            _add_counts(value, to=to.setdefault(key, {}))
        else:
            to[key] = to.get(key, 0) + value


def cut_pairs(counts: dict[str, ByName]) -> dict[str, ByName]:
    """Keeps `MAX_PAIRS` pairs of classes at most."""
    if sum(map(len, counts.values())) <= MAX_PAIRS:
        return counts
    pairs = [(first, second) for first, seconds in counts.items() for second in seconds]
    kept: dict[str, ByName] = {}
    for one, other in sorted(pairs, key=_pair_digest)[:MAX_PAIRS]:
        kept.setdefault(one, {})[other] = counts[one][other]
    return kept


def cut_facets(facets: dict[str, ByName], *, left_out: ByName) -> None:
    """Moves keys with too many values to those that are left out, in place.

    What is left does not depend on the order of the parts that were added up: values only become
    more, and a key that is left out of a part is left out of the sum.

    Args:
        facets: `{key: {value: Examples}}`.
        left_out: `{key: Examples}`.
    """
    for key in [key for key in facets if key in left_out or len(facets[key]) > MAX_FACET_VALUES]:
        left_out[key] = left_out.get(key, 0) + sum(facets.pop(key).values())
    if len(facets) + len(left_out) > MAX_FACETS:
        for key in sorted({*facets, *left_out})[MAX_FACETS:]:
            facets.pop(key, None)
            left_out.pop(key, None)


@functools.lru_cache(maxsize=4 * MAX_PAIRS)
def _pair_digest(pair: tuple[str, str]) -> bytes:
    one, other = (name.encode() for name in pair)
    return hashlib.sha256(b"%d %b%b" % (len(one), one, other)).digest()


def counted_version(kind: type[msgspec.Struct], bins: Mapping[str, Sequence[int]]) -> str:
    """Returns the version of a collector with these fields, these bins and today's measures."""
    fields = [field.name for field in msgspec.structs.fields(kind)]
    digest = hashlib.sha256(msgspec.json.encode([fields, bins])).hexdigest()[:16]
    return f"{STATISTICS_VERSION} {digest} {MEASURES_VERSION}"
