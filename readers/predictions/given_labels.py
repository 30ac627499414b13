"""Reads what a dataset says about its images, and finds the images that predictions name."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shardbeam.readers.export.base import ImageIds
from shardbeam.readers.open.images import Place, read_with_places
from shardbeam.readers.open.stored_dataset import StoredDataset, read_feature_map
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import show_name
from shardbeam.transforms.examples.decode.picture import NO_ID, Picture
from shardbeam.transforms.formats.names import normalize_for_match

# (n, 4): left, top, right and bottom in pixels of the stored picture.
Boxes: TypeAlias = npt.NDArray[np.float32]
Indexes: TypeAlias = npt.NDArray[np.int32]

# At least this share of the predictions must belong to images of the dataset.
_LEAST_MATCHED = 0.9
_NAMED = 3
# Boxes do not reach further than this many widths of the picture.
_FAR = 10
_SOURCE_ID = "image/source_id"
_OF_OBJECTS = "its Examples hold one object each; compare a dataset with an Example for each image"


class GivenLabels(NamedTuple):
    """What an Example says about its image.

    Attributes:
        place: Where it is.
        key: The image's key.
        source_id: Its `image/source_id`; may be empty.
        export_id: The id that `shardbeam export --format coco` gives it.
        width: Its width in pixels; 0 if it is not known.
        height: Its height in pixels; 0 if it is not known.
        labels: The classes of the image as a whole, as indexes of `Dataset.names`.
        objects: The classes of its objects that have a box, in order.
        numbers: The numbers of these objects in the Example, from 0.
        boxes: Their boxes.
        crowds: Which of them are crowds.
    """

    place: Place
    key: str
    source_id: str
    export_id: str
    width: int
    height: int
    labels: tuple[int, ...]
    objects: Indexes
    numbers: Indexes
    boxes: Boxes
    crowds: npt.NDArray[np.bool_]


class Dataset(NamedTuple):
    """The labels of a dataset.

    Attributes:
        path: Where it is.
        images: Its images, in order.
        names: The names of its classes: first those of the label map, then others.
        ids: `{id: index of the class}`.
    """

    path: str
    images: Sequence[GivenLabels]
    names: Sequence[str]
    ids: Mapping[int, int]


def read_labels(dataset: StoredDataset, *, split: str | None = None) -> Dataset:
    """Reads the labels of all Examples, which takes about 1 KB of memory for each.

    Args:
        dataset: The dataset.
        split: The split to read; None for all.

    Raises:
        InputError: A shard cannot be read, or the Examples are those of single objects.
    """
    feature_map = read_feature_map(dataset)
    names = [split] if split is not None else [each.name for each in dataset.splits]
    splits = [dataset.find_split(name) for name in names]
    counters.shard_bytes.expect(sum(each.num_bytes for each in splits))
    classes = _ClassNumbers(feature_map.class_names)
    export_ids = ImageIds()
    images = []
    for each in splits:
        export_ids.begin_split()
        for stored in read_with_places(each):
            picture = stored.picture(each, feature_map=feature_map)
            if picture.is_of_annotation:
                raise InputError(uri=dataset.path, problem=_OF_OBJECTS)
            source_id = _source_id(picture, key=feature_map.keys.get(_SOURCE_ID, _SOURCE_ID))
            images.append(
                _read_one(
                    stored.place,
                    picture,
                    classes=classes,
                    source_id=source_id,
                    export_id=str(export_ids.give(source_id)),
                )
            )
    return Dataset(dataset.path, images, list(classes), classes.ids)


class _ClassNumbers(dict[str, int]):
    """`{class: its index}`, and the indexes of ids."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.ids: dict[int, int] = {}
        for class_id, name in sorted(names.items()):
            self.number(name, class_id)

    def number(self, name: str, class_id: int) -> int:
        name = name or (f"class {class_id}" if class_id != NO_ID else "object")
        number = self.setdefault(name, len(self))
        if class_id != NO_ID:
            self.ids.setdefault(class_id, number)
        return number


def _read_one(
    place: Place, picture: Picture, *, classes: _ClassNumbers, source_id: str, export_id: str
) -> GivenLabels:
    with_boxes = [(n, each) for n, each in enumerate(picture.objects) if each.box is not None]
    boxes = np.array([each.box for _, each in with_boxes], np.float32).reshape(-1, 4)
    objects = [classes.number(each.label, each.label_id) for _, each in with_boxes]
    labels = zip(picture.labels, picture.label_ids, strict=True)
    return GivenLabels(
        place=place,
        key=picture.key,
        source_id=source_id,
        export_id=export_id,
        width=picture.width,
        height=picture.height,
        labels=tuple(dict.fromkeys(itertools.starmap(classes.number, labels))),
        objects=np.array(objects, np.int32),
        numbers=np.array([number for number, _ in with_boxes], np.int32),
        boxes=np.nan_to_num(boxes).clip(-_FAR, _FAR)
        * np.array([picture.width, picture.height] * 2, np.float32),
        crowds=np.array([each.is_crowd for _, each in with_boxes], np.bool_),
    )


def _source_id(picture: Picture, *, key: str) -> str:
    (value, *_) = picture.features.get(key) or (b"",)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def match_images(
    ids: Sequence[str], counts: npt.NDArray[np.int64], *, dataset: Dataset, uri: str
) -> Indexes:
    """Finds the images that predictions name: by their source id, or what else they are known by.

    Args:
        ids: Names of images, each once.
        counts: How many predictions have each name.
        dataset: The dataset.
        uri: The file of predictions, for errors.

    Returns:
        For each name the index of its image; -1 if there is none.

    Raises:
        InputError: Fewer than 90 % of the predictions belong to images of the dataset, or a name is
            that of several images.
    """
    total = int(counts.sum())
    ways = [_Way(*way, dataset=dataset, ids=ids) for way in _WAYS]
    fitting = [way for way in ways if counts[way.found >= 0].sum() >= _LEAST_MATCHED * total]
    if not fitting:
        best = max(int(counts[way.found >= 0].sum()) for way in ways)
        raise InputError(uri=uri, problem=_unmatched(best, total, ids=ids, dataset=dataset))
    way = fitting[0]
    if way.what == _EXPORT_ID:
        # Any numbers from 1 up to that of the images are ids in an export, but no others are: a
        # model that names 000000.jpg 0 has named all images by their files.
        others = fitting[1:]
        if not way.is_complete:
            way = next((other for other in others if other.is_complete), way)
        for other in others if way.what == _EXPORT_ID else ():
            differ = np.flatnonzero(
                (way.found != other.found) & (way.found >= 0) & (other.found >= 0)
            )
            if differ.size:
                number = int(differ[0])
                pair = [dataset.images[each.found[number]] for each in (way, other)]
                raise InputError(
                    uri=uri,
                    problem=f"image {show_name(ids[number])} may be {show_name(pair[0].key)}, by "
                    f"its id in the COCO export, or {show_name(pair[1].key)}, by {other.what}: "
                    "write the keys of the images as their ids",
                )
    if way.repeated:
        raise InputError(uri=uri, problem=_repeated(way, dataset=dataset))
    return way.found


class _Way:
    """A way to find the images that predictions name.

    Attributes:
        what: What the names are.
        found: For each name the index of its image; -1 if there is none.
        repeated: `{name: indexes of two images}` for names that several images have.
    """

    def __init__(
        self,
        what: str,
        of_image: Callable[[GivenLabels], str],
        of_name: Callable[[str], str],
        *,
        dataset: Dataset,
        ids: Sequence[str],
    ) -> None:
        self.what = what
        known: dict[str, int] = {}
        self.repeated: dict[str, tuple[int, int]] = {}
        names = [of_name(each) for each in ids]
        wanted = set(names)
        for number, image in enumerate(dataset.images):
            name = of_image(image)
            if name and name in wanted and known.setdefault(name, number) != number:
                self.repeated.setdefault(name, (known[name], number))
        self.found = np.array([known.get(name, -1) for name in names], np.int32)

    @property
    def is_complete(self) -> bool:
        """Whether all names are those of images."""
        return bool((self.found >= 0).all())


def _unmatched(best: int, total: int, *, ids: Sequence[str], dataset: Dataset) -> str:
    if not dataset.images:
        return f"there are predictions, but {dataset.path} has no images"
    first = dataset.images[0]
    known = f"the key {show_name(first.key)}"
    if first.source_id:
        known += f" and the source id {show_name(first.source_id)}"
    return (
        f"{best:,} of {total:,} predictions belong to images of {dataset.path}; expected at least "
        f"90 %. Their images are {list_first(ids)}; the first one of the dataset has {known}. Name "
        "the images by their keys, or give the dataset, or the split, that the model has predicted"
    )


def list_first(names: Iterable[object]) -> str:
    """Lists the first names and ids, quoted and cut if they are texts."""
    first = [*itertools.islice(names, _NAMED + 1)]
    shown = [show_name(each) if isinstance(each, str) else str(each) for each in first[:_NAMED]]
    return ", ".join(shown) + (", ..." if len(first) > _NAMED else "")


def _repeated(way: _Way, *, dataset: Dataset) -> str:
    name, pair = next(iter(way.repeated.items()))
    images = [dataset.images[each] for each in pair]
    places = " and ".join(f"{show_name(each.key)} ({each.place.split})" for each in images)
    return (
        f"{show_name(name)} is {way.what} of several images: {places}. Choose the split that the "
        "model has predicted with --split, or name the images by their keys"
    )


def _file_name(name: str) -> str:
    """Returns the name of a file as some tools write it: without its extension, or as a number."""
    stem = normalize_for_match(posixpath.basename(name), "name")
    return str(int(stem)) if stem.isascii() and stem.isdigit() and len(stem) < 19 else stem


_EXPORT_ID = "the id in the COCO export"
# What an image may be called: in words, in the dataset, and among the predictions.
_WAYS: Sequence[tuple[str, Callable[[GivenLabels], str], Callable[[str], str]]] = (
    ("the source id", lambda image: image.source_id, str),
    (_EXPORT_ID, lambda image: image.export_id, str),
    ("the key", lambda image: image.key, str),
    ("the file name", lambda image: _file_name(image.key), _file_name),
)
