"""A split as a sequence of Examples, in any order, without TensorFlow and without Beam.

It follows the protocols of PyTorch's map-style datasets (`__len__`, `__getitem__`, and
`__getitems__` for a batch; torch/utils/data/_utils/fetch.py) and of Grain's random access sources
(these, `_getitems` for a batch, and a `__repr__` that says what is read, which Grain compares when
it continues from a checkpoint; grain/_src/python/dataset/base.py).
"""

from __future__ import annotations

import functools
import os
import posixpath
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, SupportsIndex, TypeVar, cast, overload

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from shardbeam.readers.open.arguments import (
    Where,
    absolute_path,
    as_number,
    as_numbers,
    check_flag,
    check_keys,
    check_size,
    check_where,
    is_list,
    select,
    shown,
    where_columns,
)
from shardbeam.readers.open.items import (
    BOX_FORMATS,
    BoxFormat,
    Bytes,
    Classifications,
    Detections,
    DetectionTarget,
    Dictionaries,
    Form,
    Item,
    SplitContents,
)
from shardbeam.readers.open.record_reader import (
    Records,
    find_indexes,
    how_to_index,
    read_indexes,
    read_one_with_objects,
)
from shardbeam.readers.open.shard_cache import ShardCache
from shardbeam.readers.open.stored_dataset import (
    StoredDataset,
    open_dataset,
    read_feature_map,
    with_checksums,
)
from shardbeam.readers.open.stored_features import find_features
from shardbeam.transforms.containers.base import find_container, parse_example
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.map_ahead import map_ahead
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import CATEGORY_MAP, CLASS_MAP
from shardbeam.transforms.storage.base import is_uri

T = TypeVar("T")

_TFRECORD = "tfrecord"
# Examples that are read ahead in object storage.
_REQUESTS_AT_A_TIME = 64
_MAX_BYTES_AHEAD = 64_000_000


class _Opened(NamedTuple):
    """A split that is open: its records, and what is known of all of its Examples."""

    records: Records
    contents: SplitContents


class _Split(msgspec.Struct, kw_only=True, dict=True):
    """A split, opened when it is first read. Pickled, it is only its place and a fingerprint.

    Attributes:
        path: The dataset; an absolute path, or a URI.
        name: The split.
        index: The folder of indexes; None for those in the dataset.
        cache: The folder for copies of shards; None to read them where they are.
        cache_bytes: What all copies there may take; None for no bound.
        checksums: Whether the checksum of each record's data is compared.
        fingerprint: `Records.fingerprint` of the split that was pickled; None if it is new.
    """

    path: str
    name: str
    index: str | None
    cache: str | None
    cache_bytes: int | None
    checksums: bool
    fingerprint: int | None = None

    def __reduce__(self) -> tuple[object, ...]:
        fields = msgspec.structs.asdict(self) | {"fingerprint": self.opened.records.fingerprint()}
        return functools.partial(_Split, **fields), ()

    @functools.cached_property
    def opened(self) -> _Opened:
        """The open split.

        Raises:
            InputError: It cannot be opened, or is another one than the one that was pickled.
        """
        opened, _ = _open_split(self, dataset=open_dataset(self.path), columns=())
        if self.fingerprint not in (None, opened.records.fingerprint()):
            raise InputError(
                uri=self.path,
                problem="the dataset has changed since it was opened in another process; open it "
                "again",
            )
        return opened


class ExampleSequence(Generic[T]):
    """Examples of a split, in order, as items of one form.

    `len(sequence)`, `sequence[3]` and `sequence[-1]` are those of any sequence, `sequence[10:20]`
    is a sequence again, and `sequence[[3, 1, 4]]` is a list of items. An array of integers is like
    a list, and an array of booleans, of NumPy or PyTorch, is a mask: it gives the items where it is
    True. Iterating reads ahead in object storage. Threads may share a sequence, processes may
    inherit or pickle it.

    Reading an item raises `InputError` if the dataset has changed, if the record is damaged, or if
    it does not fit the form.
    """

    def __init__(
        self, split: _Split, *, form: Form[T], selection: range | npt.NDArray[np.int64]
    ) -> None:
        self._split = split
        self._form = form
        # The numbers of the records in the split.
        self._selection = selection

    def __len__(self) -> int:
        return len(self._selection)

    @overload
    def __getitem__(self, index: int | np.integer[Any], /) -> T: ...
    @overload
    def __getitem__(self, index: slice, /) -> ExampleSequence[T]: ...
    @overload
    def __getitem__(
        self, index: Sequence[SupportsIndex] | npt.NDArray[np.integer[Any] | np.bool_], /
    ) -> list[T]: ...
    def __getitem__(
        self, index: SupportsIndex | slice | Sequence[SupportsIndex] | npt.NDArray[Any], /
    ) -> T | ExampleSequence[T] | list[T]:
        if isinstance(index, slice):
            return ExampleSequence(self._split, form=self._form, selection=self._selection[index])
        # Asked first, because it costs less than the other question.
        if type(index) is not int and is_list(index):
            return self.__getitems__(cast("Sequence[SupportsIndex]", index))
        return self._read(self._number(as_number(index)))

    def __getitems__(
        self, indexes: Sequence[SupportsIndex] | npt.NDArray[np.integer[Any] | np.bool_], /
    ) -> list[T]:
        """Returns several items; in object storage they are read at the same time."""
        chosen = as_numbers(indexes, size=len(self))
        return list(self._read_all([self._number(index) for index in chosen]))

    # Grain's name for it.
    _getitems = __getitems__

    def __iter__(self) -> Iterator[T]:
        return self._read_all(self._selection)

    def __repr__(self) -> str:
        split, selection = self._split, self._selection
        chosen = (
            repr(selection)
            if isinstance(selection, range)
            else f"{len(selection)} chosen ({google_crc32c.value(selection.tobytes()):08x})"
        )
        return f"<Examples {chosen} of {split.name!r} in {split.path!r} as {self._form!r}>"

    def detection(
        self, *, boxes: BoxFormat = "xyxy", masks: bool = False, keypoints: bool = False
    ) -> ExampleSequence[tuple[Bytes, DetectionTarget]]:
        """Returns the same Examples as pairs of an image and its objects, for detectors.

        The image is (height, width, 3), uint8. `DetectionTarget` describes the objects: its names
        are those of torchvision, and `boxes` and `labels` are those that KerasHub takes, too.

        Args:
            boxes: `xyxy` (left, top, right, bottom) or `xywh` (left, top, width, height), both in
                pixels, or `rel_yxyx` (top, left, bottom, right) in fractions of the image.
            masks: Whether to decode the objects' masks.
            keypoints: Whether to read their keypoints.

        Raises:
            InputError: The dataset has no objects, masks or keypoints.
            TypeError: `masks` or `keypoints` is neither True nor False.
            ValueError: `boxes` is none of these forms.
        """
        if not isinstance(boxes, str) or boxes not in BOX_FORMATS:
            raise ValueError(f"boxes: expected one of {', '.join(BOX_FORMATS)}, got {shown(boxes)}")
        check_flag("masks", masks)
        check_flag("keypoints", keypoints)
        return self._as(Detections(boxes=boxes, masks=masks, keypoints=keypoints))

    def classification(self) -> ExampleSequence[tuple[Bytes, int]]:
        """Returns the same Examples as pairs of an image and its label, for classifiers.

        The image is (height, width, 3), uint8; the label is an id (`class_names`).

        Raises:
            InputError: The dataset has no labels of images.
        """
        return self._as(Classifications())

    def _as(self, form: Form[Any]) -> ExampleSequence[Any]:
        changed = ExampleSequence(self._split, form=form, selection=self._selection)
        # Fail now, and not in a worker process.
        _ = changed._make
        return changed

    def __getstate__(self) -> dict[str, Any]:
        # Functions that make items are made again.
        return {key: value for key, value in self.__dict__.items() if key != "_make"}

    @functools.cached_property
    def _make(self) -> Any:  # noqa: ANN401  # mypy takes a function in an attribute for a method.
        return self._form.prepare(self._split.opened.contents)

    def _number(self, index: int) -> int:
        """Returns the number of an item's record in the split.

        Raises:
            IndexError: There is no such item.
        """
        if not -len(self._selection) <= index < len(self._selection):
            raise IndexError(f"no item {shown(index)} in a sequence of {len(self._selection):,}")
        return int(self._selection[index])

    def _read_all(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> Iterator[T]:
        """Yields items, read many at a time where each is a request."""
        records = self._split.opened.records
        if not records.is_remote:
            yield from map(self._read, numbers)
            return
        with ThreadPoolExecutor(_REQUESTS_AT_A_TIME, thread_name_prefix="read") as executor:
            yield from map_ahead(
                self._read,
                numbers,
                executor=executor,
                max_items=_REQUESTS_AT_A_TIME,
                size_bytes=records.size_bytes,
                max_bytes=_MAX_BYTES_AHEAD,
            )

    def _read(self, number: int) -> T:
        records = self._split.opened.records
        number = int(number)
        record = records.read(number)
        try:
            item: T = self._make(Example.FromString(record))
        except (DecodeError, RejectedError, ValueError) as error:
            uri, place = records.place(number)
            # Says so if it is not an Example.
            parse_example(record, uri=uri, place=place)
            problem = error.detail if isinstance(error, RejectedError) else str(error)
            raise InputError(uri=uri, place=place, problem=problem) from error
        return item


def open(  # As in gzip and tarfile.
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    index: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    features: Sequence[str] | None = None,
    decode: bool = False,
    checksums: bool = False,
    where: Where | None = None,
) -> ExampleSequence[Item]:
    """Opens a split of a dataset as a sequence of Examples.

    An item is a dictionary with the keys of the Examples:

    - A single value is `bytes`, `int` or `float`.
    - A list is a one-dimensional array, `np.int64` or `np.float32`, or a list of `bytes`.
    - With `decode=True`, an image is an array (height, width, 3), `np.uint8`, with the pixels of
      the file: EXIF does not turn it. A map of one channel is (height, width, 1), with 16 bits if
      the file has them. Images in a list (masks) stay encoded.

    `features.json` says what is a single value and what is an image; without this file, that is
    inferred from about 64 records.

    Each item is one read, at the place that the dataset's index gives, and the record there has to
    begin with the length that the index gives and its checksum: otherwise the dataset has changed,
    and an error says so. At most 64 shards are open at a time.

    Args:
        path: A dataset's folder, a pointer to it (`output.latest`), a folder of TFRecord files, or
            a TFRecord file.
        split: Which split; required if there are several.
        index: The folder that `shardbeam index` has written; by default the index in the dataset.
        cache: A folder on disk for whole copies of the shards, which several processes may share;
            shards of other containers than TFRecord are unpacked there. A shard is copied when
            one of its Examples is first read. Each user has copies of their own, in the folder
            `shardbeam-<uid>` in it. By default each Example is read where it is; on `gs://` by a
            request of its range.
        cache_bytes: The most bytes that the user's copies in `cache` may take, those of other
            datasets, too. To make room for a copy, those are deleted that were opened longest ago.
            By default nothing is deleted, and there must be room for the whole split.
        features: The keys that items have; all by default. An item with few of them is made
            faster.
        decode: Whether to decode images.
        checksums: Whether to compare the checksum of each record's data as well.
        where: Conditions on the Examples to select (`Where`), which the index alone decides:
            `{"classes": ["cat", 7]}` (of objects, images and maps), `{"min_objects": 1}`,
            `{"keys": ["a/1.jpg"]}`.

    Raises:
        InputError: There is no such dataset, split, feature, class or key; the shards have no
            index, or are not TFRecord files and `cache` is not given; there is no room in `cache`,
            or its folder of this user could be changed by others; a shard is larger than
            `cache_bytes`.
        TypeError: An argument is of another type.
        ValueError: A path is empty; a condition in `where` is unknown, or is of another type;
            `cache_bytes` is below 1, or given without `cache`.
    """
    where = check_where(where)
    check_flag("decode", decode)
    check_flag("checksums", checksums)
    if split is not None and not isinstance(split, str):
        raise TypeError(f"split: expected a name, got {shown(split)}")
    form = Dictionaries(
        decode=bool(decode),
        features=None if features is None else check_keys("features", features),
    )
    cache = None if cache is None else absolute_path("cache", cache)
    if cache is not None and is_uri(cache):
        raise ValueError(f"cache: expected a folder on disk, got {cache!r}")
    if cache_bytes is not None:
        cache_bytes = check_size("cache_bytes", cache_bytes)
        if cache is None:
            raise ValueError("cache_bytes: only together with cache, the folder of the copies")
    index = None if index is None else absolute_path("index", index)
    dataset = open_dataset(absolute_path("path", path))
    source = _Split(
        # If `path` is a pointer, workers must read the same version.
        path=dataset.path,
        name=dataset.find_split(split).name,
        index=index,
        cache=cache,
        cache_bytes=cache_bytes,
        checksums=bool(checksums),
    )
    source.opened, tables = _open_split(source, dataset=dataset, columns=where_columns(where))
    selection: range | npt.NDArray[np.int64] = range(source.opened.records.size)
    if where:
        feature_map = source.opened.contents.feature_map()
        maps = {feature_map.keys.get(key, key) for key in (CLASS_MAP, CATEGORY_MAP)}
        selection = select(
            where,
            tables=tables,
            class_names=feature_map.class_names,
            has_maps=not feature_map.numbered_maps
            and not maps.isdisjoint(each.key for each in source.opened.contents.features),
            path=dataset.path,
            fix=how_to_index(dataset.path),
        )
    return ExampleSequence(source, form=form, selection=selection)._as(form)


def class_names(path: str | os.PathLike[str]) -> dict[int, str]:
    """Returns the names of a dataset's classes, `{id: name}`, in the order of their ids.

    They come from the manifest, or else from `label_map.pbtxt` or `labels.txt`; empty if there is
    none of these.

    Args:
        path: A path as for `open`.

    Raises:
        InputError: There is no such dataset, or it cannot be read.
        TypeError: `path` is neither a text nor a path.
        ValueError: `path` is empty.
    """
    dataset = open_dataset(absolute_path("path", path))
    return dict(sorted(read_feature_map(dataset).class_names.items()))


def _open_split(
    place: _Split, *, dataset: StoredDataset, columns: Sequence[str]
) -> tuple[_Opened, Sequence[pa.Table]]:
    """Reads the indexes of a split; returns other columns of them, too, a table for each shard.

    Raises:
        InputError: It cannot be read, or has no index.
    """
    split = dataset.find_split(place.name)
    is_packed = split.container != _TFRECORD
    if is_packed and place.cache is None:
        readers = find_container(split.container).readers
        raise InputError(
            uri=place.path,
            problem=f"shardbeam.open reads TFRecord files where they lie, not {split.container}; "
            "with cache=DIR, their Examples are unpacked into DIR; read the files themselves with "
            f"{readers or 'what reads that format'}",
        )
    shards = split.shards
    cache = None
    if place.cache is not None:
        cache = ShardCache(place.cache, max_bytes=place.cache_bytes, container=split.container)
        # The manifest's checksums show whether a copy is whole. It names a shard that is opened
        # alone by its path in the dataset.
        listed = {
            posixpath.basename(shard.uri) if shard.uri == place.path else shard.path: shard
            for shard in shards
        }
        shards = tuple(with_checksums(listed, manifest=dataset.manifest_of_shards).values())
        if not is_packed:
            cache.check_room(shards)

    indexes = find_indexes(shards, dataset=dataset, folder=place.index)
    bounds, tables = read_indexes(
        indexes,
        path=place.path,
        columns=columns,
        examples=split.shard_examples,
        is_packed=is_packed,
    )
    if cache is not None and is_packed:
        shards = tuple(cache.unpack(shards, sizes=[int(each[-1]) for each in bounds]))
        cache.check_room(shards)
    records = Records(shards, bounds, cache=cache, checksums=place.checksums)
    contents = SplitContents(
        path=place.path,
        features=find_features(dataset),
        is_inferred=dataset.features is None,
        feature_map=functools.cache(functools.partial(read_feature_map, dataset)),
        with_objects=functools.partial(read_one_with_objects, records, indexes),
    )
    return _Opened(records, contents), tables
