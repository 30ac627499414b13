"""Reads the Examples of a shard, and finds where their images are."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import posixpath
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeAlias

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.containers.base import (
    Container,
    container_names,
    find_container,
    parse_example,
)
from shardbeam.transforms.containers.tfrecord import HEADER_BYTES
from shardbeam.transforms.core.errors import (
    DECODING_ERRORS,
    DamagedError,
    InputError,
    naming,
    reading,
    unreadable,
)
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import Skeletons
from shardbeam.transforms.core.temporary_files import TEMPORARY_PREFIX
from shardbeam.transforms.examples.decode.class_names import read_class_names
from shardbeam.transforms.examples.decode.decode import make_picture
from shardbeam.transforms.examples.decode.feature_map import FeatureMap, StoredKeys
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.encode.schema import check_key, known_keys
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import (
    CLASS_MAP,
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
    feature_values,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for

# Reads what the files beside shards say about these: a manifest, or names of classes.

TFRECORD = "tfrecord"
MANIFEST, DATASET_INFO = "manifest.json", "dataset_info.json"
# A key that no other program's manifest has.
_OURS = b'"shardbeam"'


class ListedIndex(msgspec.Struct, frozen=True):
    """The index of a shard, as its dataset's manifest lists it (`storage.find`)."""

    path: str
    size_bytes: int
    crc32c: str


class ListedShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard, as its dataset's manifest lists it.

    Attributes:
        split: Its split.
        container: Name of its container (`containers.base.find_container`).
        examples: How many Examples it holds.
        crc32c: Checksum of the whole file, 8 hex digits.
        index: Its index, if the manifest lists one.
    """

    split: str
    container: str = TFRECORD
    examples: int
    crc32c: str
    index: ListedIndex | None = None


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What the files beside TFRecord files say about these.

    Attributes:
        feature_map: How their Examples are to be read.
        shards: `{name of a file: what the manifest says about it}`, if there is a manifest.
        features: The features of every Example, if there is a manifest.
    """

    feature_map: FeatureMap
    shards: Mapping[str, ListedShard] = {}
    features: tuple[FeatureSpec, ...] | None = None


class _Shard(msgspec.Struct, frozen=True):
    path: str
    examples: int
    crc32c: str


class _Shards(msgspec.Struct, frozen=True):
    shards: tuple[_Shard, ...]


class _Manifest(msgspec.Struct, frozen=True):
    """The fields of `dataset.manifest.Manifest` that are read here."""

    shardbeam: str
    config: dict[str, Any]
    features: tuple[FeatureSpec, ...]
    splits: Mapping[str, _Shards]
    files: tuple[ListedIndex, ...] = ()
    labels: Mapping[str, int] = {}
    skeletons: Skeletons = {}
    numbered_maps: bool = False


def read_layout(folder: str) -> Layout:
    """Reads a dataset's manifest, or else a file of class names, in the folder of TFRecord files.

    Raises:
        InputError: A file cannot be read, or the dataset is not committed.
    """
    uri = join_uri(folder, MANIFEST)
    storage = storage_for(uri)
    try:
        data = storage.read_small(uri, max_bytes=limits.METADATA_BYTES)
        committed = storage.stat(join_uri(folder, DATASET_INFO)) is not None
        manifest = JsonDecoder(_Manifest).decode(data)
    except FileNotFoundError:
        return Layout(feature_map=FeatureMap(class_names=read_class_names(folder)))
    except DECODING_ERRORS as error:
        if _OURS in data:
            problem = f"not a manifest of Shardbeam, or a damaged one: {error}"
            raise InputError(uri=uri, problem=problem) from error
        # Other programs write files with this name, too.
        return Layout(feature_map=FeatureMap(class_names=read_class_names(folder)))
    except OSError as error:
        raise unreadable(uri, error) from error
    if not committed:
        raise InputError(
            uri=folder, problem="the dataset is not committed: dataset_info.json is missing"
        )
    files = {file.path: file for file in manifest.files}
    output = manifest.config.get("output")
    container = output.get("container", TFRECORD) if isinstance(output, dict) else TFRECORD
    if container not in container_names():
        problem = f"names a container that this version does not know: {container!r}"
        raise InputError(uri=uri, problem=problem)
    return Layout(
        feature_map=FeatureMap.of_manifest(
            config=manifest.config,
            labels=manifest.labels,
            skeletons=manifest.skeletons,
            numbered_maps=manifest.numbered_maps,
        ),
        shards={
            posixpath.basename(shard.path): ListedShard(
                split=split,
                container=container,
                examples=shard.examples,
                crc32c=shard.crc32c,
                index=files.get(index_path(shard.path)),
            )
            for split, entry in manifest.splits.items()
            for shard in entry.shards
        },
        features=manifest.features,
    )


def index_path(shard_path: str) -> str:
    """Names a shard's index, as `dataset.index` does; both paths are below the dataset's folder."""
    return f"index/{shard_path}.parquet"


def how_to_convert(uri: str) -> str:
    """Says how to make TFRecord files of a shard's dataset."""
    folder = posixpath.dirname(uri) or "."
    return f"convert them: `shardbeam convert {folder} --container {TFRECORD} --output DIR`"


_FIX = "copy or make the file again, or leave it out"
# Unpacked again, a file has the same time, so that it is the same version.
_UNPACKED_NS = 10**18


# (value, key)
Locate: TypeAlias = Callable[[bytes, str], tuple[StoredFile, int]]
# (place, record, function)
_Located: TypeAlias = tuple[int, bytes, Locate]


class FoundExample(NamedTuple):
    """An Example of a file.

    Attributes:
        number: Its number in the file, from 0.
        offset: Its place in its container: for TFRecord the byte where its record begins.
        record: The serialized Example.
        example: The Example.
        place: Its place in words.
        locate: Returns the file that holds a value of a key of the Example, and the byte where it
            begins.
    """

    number: int
    offset: int
    record: bytes
    example: Example
    place: str
    locate: Locate


def read_examples(
    file: StoredFile,
    *,
    container: str = TFRECORD,
    unpack_into: str = "",
    see: Callable[[bytes], None] | None = None,
) -> Iterator[FoundExample]:
    """Yields the Examples of a shard, after comparing the checksum of each, or of the file.

    Args:
        file: The file.
        container: Its container.
        unpack_into: A folder on disk, where the records of a container that does not store images
            in one piece are written.
        see: Called with all bytes of the file, in order.

    Raises:
        InputError: The file cannot be read, is truncated, damaged or compressed, is no file of
            Examples in this container, or does not hold an image in one piece.
    """
    reader = find_container(container)
    records: Iterator[_Located]
    if container == TFRECORD:
        records = (
            (offset, record, _in_record(file, offset + HEADER_BYTES, record))
            for offset, record in reader.read(file, see=see)
        )
    elif reader.stores_images:
        records = _read_copied(file, reader=reader, see=see)
    else:
        records = _unpack(file, reader.read(file, see=see), folder=unpack_into)
    try:
        for number, (offset, record, locate) in enumerate(records):
            place = reader.describe_place(offset)
            if container == TFRECORD:
                place = f"record {number:,}, byte {offset:,}"
            example = parse_example(record, uri=file.uri, place=place)
            yield FoundExample(number, offset, record, example, place, locate)
    except DamagedError as error:
        fix = "" if "gunzip" in error.problem else f"; {_FIX}"
        raise InputError(uri=error.uri, place=error.place, problem=error.problem + fix) from error


def _in_record(file: StoredFile, begin: int, record: bytes) -> Locate:
    # A value of an Example is one run of bytes of its record. Wherever the first such run is, it
    # holds the same bytes.
    return lambda data, _: (file, begin + record.index(data))


def _read_copied(
    file: StoredFile, *, reader: Container, see: Callable[[bytes], None] | None
) -> Iterator[_Located]:
    """Copies a file while it is read, and searches the values of its Examples in the copy."""
    values: _Values | None = None
    with tempfile.TemporaryFile(prefix=TEMPORARY_PREFIX) as copy:

        def see_and_copy(data: bytes) -> None:
            with naming(tempfile.gettempdir()):
                copy.write(data)
            if see is not None:
                see(data)

        for offset, record in reader.read(file, see=see_and_copy):
            if values is None:
                with naming(tempfile.gettempdir()):
                    copy.flush()
                    values = _Values(file, copy)
            yield offset, record, values.locate


class _Values:
    """Finds the values of a file's Examples.

    The values of a key follow each other in the order of the Examples, so that a search begins
    where the one before has ended. Wherever a value is found, it holds the same bytes.

    Args:
        file: The file.
        copy: A copy of it, which may be closed after this.
    """

    def __init__(self, file: StoredFile, copy: IO[bytes]) -> None:
        self._file = file
        self._bytes = mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)
        # {key: the byte after its last value}
        self._next: dict[str, int] = {}

    def locate(self, data: bytes, key: str) -> tuple[StoredFile, int]:
        """Finds a value, as `FoundExample.locate` does.

        Raises:
            InputError: The file does not hold it in one piece.
        """
        begin = self._bytes.find(data, self._next.get(key, 0))
        if begin < 0:
            begin = self._bytes.find(data)
        if begin < 0:
            raise InputError(
                uri=self._file.uri,
                problem=f"does not hold the values of {key} in one piece, so that they cannot be "
                f"read where they lie; {how_to_convert(self._file.uri)}",
            )
        self._next[key] = begin + len(data)
        return self._file, begin


def _unpack(
    file: StoredFile, found: Iterable[tuple[int, bytes]], *, folder: str
) -> Iterator[_Located]:
    """Writes all records of a file into one file, and yields them then."""
    path = os.path.join(folder, posixpath.basename(file.uri))
    part = f"{path}.{uuid.uuid4().hex}"
    records = []
    with naming(part), open(part, "xb") as unpacked:
        for offset, record in found:
            records.append((offset, unpacked.tell(), len(record)))
            unpacked.write(record)
        os.utime(part, ns=(_UNPACKED_NS, _UNPACKED_NS))
    os.replace(part, path)
    stored = find_file(path)
    with naming(path), open(path, "rb") as unpacked:
        for offset, begin, size_bytes in records:
            record = unpacked.read(size_bytes)
            yield offset, record, _in_record(stored, begin, record)


def find_file(uri: str) -> StoredFile:
    """Finds a file that was listed.

    Raises:
        InputError: It cannot be read.
    """
    with reading(uri):
        return storage_for(uri).find(uri)


# Finds out which keys the Examples of TFRecord files have.

_SAMPLED_EXAMPLES = 64
# A longer text is data of another kind; records are about 1 KB.
_MAX_TEXT_BYTES = 4096
OBJECT = "image/object/"
ANNOTATION = "annotation/"
_LABEL = "image/class/label"
_PANOPTIC = "image/panoptic/"
_OF_KIND = {
    "image/class/label": Kind.CLASSIFICATION,
    "image/class/text": Kind.CLASSIFICATION,
    "image/class/confidence": Kind.LABEL_CONFIDENCE,
    "image/object/mask": Kind.INSTANCE_MASKS,
    "annotation/mask": Kind.INSTANCE_MASKS,
    "image/object/keypoint/x": Kind.KEYPOINTS,
    "image/caption": Kind.CAPTIONS,
    CLASS_MAP: Kind.SEMANTIC,
}


class _Keys:
    """The keys of Examples, collected from several of them, and from manifests."""

    def __init__(self) -> None:
        self.kinds: set[Kind] = set()
        self.extras: dict[str, ExtraFeature] = {}
        self.left_out: dict[str, str] = {}
        self.raw: set[bool] = set()
        # Whether each manifest says that there is one label; False where there is no manifest.
        self.single_label: set[bool] = set()

    def add(self, extra: ExtraFeature, *, uri: str) -> None:
        """Adds a key that is not one of the default keys.

        Raises:
            InputError: It is known with values of another kind.
        """
        spec = extra.spec
        known = self.extras.setdefault(spec.key, extra)
        if known.spec.kind is not spec.kind:
            raise InputError(
                uri=uri,
                place=spec.key,
                problem=f"a list of {spec.kind.value} values here, and of {known.spec.kind.value} "
                "values in an earlier Example; write the files again with one kind",
            )
        self.extras[spec.key] = ExtraFeature(
            msgspec.structs.replace(known.spec, repeated=known.spec.repeated or spec.repeated),
            per_object=known.per_object and extra.per_object,
        )

    def add_default(self, key: str) -> None:
        """Adds one of the default keys."""
        if key.startswith(_PANOPTIC):
            self.left_out[key] = "panoptic maps cannot be read back"
        elif key.startswith((OBJECT, ANNOTATION)):
            self.kinds.add(Kind.DETECTION)
        if key in _OF_KIND:
            self.kinds.add(_OF_KIND[key])


def find_keys(layouts: Mapping[str, Layout]) -> StoredKeys:
    """Finds the keys of a source's Examples: in the manifest, or else in the first Examples.

    About 64 Examples are read, spread over the files. Without a manifest, other keys than the
    default ones hold lists, because a later Example may have any number of values.

    Args:
        layouts: `{file: what the files beside it say}`.

    Raises:
        InputError: A file cannot be read, no Example has an image, or a key has values of two
            kinds.
    """
    keys = _Keys()
    for layout in {id(layout): layout for layout in layouts.values()}.values():
        files = [file for file, of_file in layouts.items() if of_file is layout]
        if layout.features is not None:
            _add_features(layout.features, feature_map=layout.feature_map, uri=files[0], keys=keys)
        else:
            _add_samples(files, feature_map=layout.feature_map, keys=keys)
    if any(key.startswith(_PANOPTIC) for key in keys.left_out):
        # The map of classes is a part of the panoptic maps then.
        keys.left_out[CLASS_MAP] = keys.left_out[f"{_PANOPTIC}category_mask"]
        keys.kinds.discard(Kind.SEMANTIC)
    return StoredKeys(
        kinds=tuple(sorted(keys.kinds)),
        extras=tuple(
            extra for key, extra in sorted(keys.extras.items()) if key not in keys.left_out
        ),
        left_out=dict(sorted(keys.left_out.items())),
        raw=keys.raw == {True},
        single_label=keys.single_label == {True},
    )


def _add_features(
    features: Sequence[FeatureSpec], *, feature_map: FeatureMap, uri: str, keys: _Keys
) -> None:
    defaults = default_keys(feature_map)
    images = [spec for spec in features if defaults.get(spec.key, spec.key) == IMAGE]
    if not images:
        raise _no_images(posixpath.dirname(uri), what="the Examples of this dataset hold no images")
    keys.raw.add(images[0].role is not FeatureRole.IMAGE)
    keys.single_label.add(
        any(defaults.get(spec.key, spec.key) == _LABEL and not spec.repeated for spec in features)
    )
    for spec in features:
        key = defaults.get(spec.key, spec.key)
        if key in known_keys():
            keys.add_default(key)
        else:
            extra = msgspec.structs.replace(spec, key=key)
            keys.add(ExtraFeature(extra, per_object=key.startswith(OBJECT)), uri=uri)


def default_keys(feature_map: FeatureMap) -> dict[str, str]:
    """Returns `{key as it is written: default key}`."""
    return {written: default for default, written in feature_map.keys.items() if written}


def _no_images(uri: str, *, what: str) -> InputError:
    return InputError(uri=uri, problem=f"{what}; expected an image in {IMAGE}")


def _add_samples(files: Sequence[str], *, feature_map: FeatureMap, keys: _Keys) -> None:
    keys.single_label.add(False)
    sampled = files[:: math.ceil(len(files) / _SAMPLED_EXAMPLES)]
    each = math.ceil(_SAMPLED_EXAMPLES / len(sampled))
    examples = 0
    # {key: whether each Example has one of its values for each object}
    of_objects: dict[str, list[bool]] = {}
    images: set[str] = set()
    for uri in sampled:
        for found in itertools.islice(read_examples(find_file(uri)), each):
            examples += 1
            picture = make_picture(found.example, feature_map=feature_map)
            if picture.image:
                keys.raw.add(picture.format == "raw")
                images.add(_image_key(picture))
            for key, feature in found.example.features.feature.items():
                kind, values = feature_values(feature)
                if kind is None:
                    continue
                if key in known_keys():
                    keys.add_default(key)
                    continue
                of_objects.setdefault(key, []).append(
                    key.startswith(OBJECT) and len(values) == len(picture.objects)
                )
                problem = _why_not_carried(key, kind=kind, values=values)
                if problem:
                    keys.left_out[key] = problem
                keys.add(ExtraFeature(FeatureSpec(key, kind, repeated=True)), uri=uri)
    if examples and not images:
        raise _no_images(files[0], what=f"none of the first {examples:,} Examples holds an image")
    for key, of_each in of_objects.items():
        keys.extras[key] = msgspec.structs.replace(keys.extras[key], per_object=all(of_each))
    # An image under another key is the image, and is written as such.
    for key in images - {IMAGE}:
        keys.extras.pop(key, None)
        keys.left_out.pop(key, None)


def _image_key(picture: Picture) -> str:
    """Returns the key of a picture's image."""
    if IMAGE in picture.features:
        return IMAGE
    return next(key for key, values in picture.features.items() if values[:1] == (picture.image,))


def _why_not_carried(key: str, *, kind: FeatureKind, values: Sequence[Any]) -> str:
    """Explains why a key cannot be carried over; empty if it can."""
    try:
        check_key(key, setting="key")
    except ValueError:
        return "its name is too long, or not printable"
    if kind is not FeatureKind.BYTES:
        return ""
    if sum(map(len, values)) > _MAX_TEXT_BYTES:
        return f"it holds more than {_MAX_TEXT_BYTES:,} bytes"
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        return "its bytes are no text"
    return ""
