"""Reads shards of Examples: their images and annotations."""

from __future__ import annotations

import itertools
import posixpath
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import msgspec

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import DamagedError, InputError, RejectedError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    Coding,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    MaskRole,
    encode_annotations,
)
from shardbeam.transforms.examples.decode.annotations import (
    annotations_of,
    class_of,
    keypoint_names,
)
from shardbeam.transforms.examples.decode.decode import make_picture
from shardbeam.transforms.examples.decode.feature_map import FeatureMap, StoredKeys
from shardbeam.transforms.examples.decode.picture import NO_ID, Picture
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.encode.schema import known_keys
from shardbeam.transforms.examples.features import CLASS_MAP
from shardbeam.transforms.formats.annotation_file import lost_classes, with_defect
from shardbeam.transforms.formats.names import escape_key, normalize_key
from shardbeam.transforms.formats.tfrecord.examples import (
    TFRECORD,
    FoundExample,
    ListedShard,
    default_keys,
    index_path,
    read_examples,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile, join_uri
from shardbeam.transforms.storage.listed_files import read_listed
from shardbeam.transforms.storage.parquet import read_parquet

_DIGITS = 9


class _Image(NamedTuple):
    """An image of a file, and its Example, or one of several Examples of the same image.

    Attributes:
        found: The Example.
        key: The image's key.
        picture: The Example as a picture.
    """

    found: FoundExample
    key: str
    picture: Picture

    @property
    def same_image(self) -> tuple[object, ...]:
        """Equal for neighbours that are Examples of the objects of one image."""
        number = None if self.picture.is_of_annotation else self.found.number
        return self.key, zlib.crc32(self.picture.image), number


class ExampleReader(msgspec.Struct, frozen=True, kw_only=True):
    """Lists the images of a TFRecord file with their annotations.

    Attributes:
        keys: The keys of the source's Examples.
        masks: Whether masks of objects are read.
        feature_map: How the Examples are to be read.
        source: The source whose Examples are read, as the file's index says; empty for all.
        split: The split of the file; empty if it has none.
        listed: What the manifest of the file's dataset says about it; None without a manifest.
        unpack_into: As for `read_examples`.
    """

    keys: StoredKeys
    masks: bool
    feature_map: FeatureMap
    source: str = ""
    split: str = ""
    listed: ListedShard | None = None
    unpack_into: str = ""

    def read(
        self, file: StoredFile, *, file_index: int
    ) -> Iterator[ListedImage | AnnotationEntry | Category]:
        """Lists the images of a file.

        Args:
            file: The file.
            file_index: Its number among the source's files.

        Yields:
            Each image, as a byte range of the file, the entry about it, and the classes.

        Raises:
            InputError: As `read_examples`; or the file has no index, and `source` is set; or it is
                not what its dataset's manifest and index say, which its end shows at the latest.
        """
        classes = _Classes(self.feature_map, uri=file.uri)
        name = posixpath.basename(file.uri)
        for _, group in itertools.groupby(self._images(file), lambda image: image.same_image):
            images = list(group)
            first, place = images[0], f"{name}: {images[0].found.place}"
            entry = AnnotationEntry(
                key=first.key,
                file_index=file_index,
                position=first.found.offset,
                split=self.split,
                detail=place,
            )
            if not first.picture.image:
                problem = f"{place}: the Example holds no image in {IMAGE}"
                yield with_defect(entry, problem, reason=Reason.MISSING_IMAGE)
                continue
            image = _locate(first.picture.image, key=IMAGE, record=first.found)
            if first.picture.format == "raw":
                image = msgspec.structs.replace(image, coding=Coding.CIFAR_RAW)
            yield ListedImage(key=first.key, image=image)
            entry = msgspec.structs.replace(entry, image=(image.uri, image.offset))
            try:
                annotations = self._annotate(images)
            except RejectedError as error:
                yield with_defect(entry, f"{place}: {error.detail}", reason=error.reason)
                continue
            for each in images:
                classes.add(each.picture)
            classes.lost |= annotations.lost
            yield msgspec.structs.replace(entry, annotations=encode_annotations(annotations))
        yield from classes.categories()

    def _images(self, file: StoredFile) -> Iterator[_Image]:
        rows = _read_index(file, listed=self.listed) if self.source else None
        for found in self._read_whole(file):
            if rows is not None:
                row = rows.pop(found.offset, None)
                if row is None or not row.fits(found.record):
                    raise InputError(
                        uri=file.uri,
                        place=found.place,
                        problem="its index has no such record, or says that another one is there: "
                        f"the dataset has changed, or is damaged; {_verify(file)}",
                    )
                if row.source == self.source:
                    yield _Image(
                        found, row.key, make_picture(found.example, feature_map=self.feature_map)
                    )
                continue
            picture = make_picture(found.example, feature_map=self.feature_map)
            key = normalize_key(escape_key(picture.key))
            if not key:
                key = f"{posixpath.basename(file.uri)}/{found.number:0{_DIGITS}}"
            yield _Image(found, key, picture)
        if rows:
            problem = f"its index has {len(rows):,} more records than the file; {_verify(file)}"
            raise InputError(uri=file.uri, problem=problem)

    def _read_whole(self, file: StoredFile) -> Iterator[FoundExample]:
        """Yields the Examples of a file, and at its end compares it with the manifest.

        Raises:
            InputError: As `read_examples`; or the file is not the one that the manifest lists.
        """
        listed = self.listed
        container = TFRECORD if listed is None else listed.container
        if listed is not None and not find_container(container).checks_records:
            file = msgspec.structs.replace(file, crc32c=listed.crc32c)
        checksum = 0

        def see(data: bytes) -> None:
            nonlocal checksum
            checksum = google_crc32c.extend(checksum, data)

        examples = 0
        for found in read_examples(
            file,
            container=container,
            unpack_into=self.unpack_into,
            see=None if listed is None else see,
        ):
            examples += 1
            yield found
        if listed is None:
            return
        problem = ""
        if examples != listed.examples:
            problem = f"holds {examples:,} Examples, and the manifest says {listed.examples:,}"
        elif f"{checksum:08x}" != listed.crc32c:
            problem = f"has the checksum {checksum:08x}, and the manifest says {listed.crc32c}"
        if problem:
            raise InputError(uri=file.uri, problem=f"{problem}; {_verify(file)}")

    def _annotate(self, images: Sequence[_Image]) -> ImageAnnotations:
        """Makes the annotations of an image; several Examples hold an object each."""
        first_picture = images[0].picture
        first, *others = [
            annotations_of(
                each.picture,
                feature_map=self.feature_map,
                extras=self.keys.extras,
                masks=self.masks,
            )
            for each in images
        ]
        corrections = Corrections()
        for part in (first, *others):
            corrections.include(part.corrections, part.changes)
            corrections.include_lost(part.lost)
        unknown = self._unknown_keys(first_picture)
        if unknown:
            corrections.note(Correction.KEY_NOT_CARRIED_OVER, unknown)
        masks = {}
        class_map = first_picture.class_map
        if Kind.SEMANTIC in self.keys.kinds and class_map:
            masks[MaskRole.SEMANTIC] = _locate(class_map, key=CLASS_MAP, record=images[0].found)
        return msgspec.structs.replace(
            first,
            objects=(*first.objects, *(item for part in others for item in part.objects)),
            **corrections.fields(),
            masks=masks,
        )

    def _unknown_keys(self, picture: Picture) -> list[str]:
        """Returns keys with values that none of the first Examples has."""
        defaults = default_keys(self.feature_map)
        extras = {extra.spec.key for extra in self.keys.extras}
        return [
            key
            for key, values in picture.features.items()
            if values
            and defaults.get(key, key) not in known_keys()
            and defaults.get(key, key) not in extras
            and key not in self.keys.left_out
            and values[:1] != (picture.image,)
        ]


def _locate(data: bytes, *, key: str, record: FoundExample) -> ImageRef:
    """Returns the place of a value of a record."""
    file, offset = record.locate(data, key)
    return ImageRef(
        uri=file.uri,
        offset=offset,
        size_bytes=len(data),
        version=file.version,
        whole=False,
        crc32=zlib.crc32(data),
    )


class _IndexRow(NamedTuple):
    """What an index says about a record; an older index has no checksums."""

    key: str
    source: str
    length: int
    crc32c: int | None

    def fits(self, record: bytes) -> bool:
        """Whether it is about this record."""
        return len(record) == self.length and self.crc32c in (None, google_crc32c.value(record))


def _read_index(file: StoredFile, *, listed: ListedShard | None) -> dict[int, _IndexRow]:
    """Reads `{place of a record: what the index says about it}` from a shard's index.

    Raises:
        InputError: The index is not there, cannot be read, or is damaged.
    """
    folder, name = posixpath.split(file.uri)
    uri = join_uri(folder, index_path(name))
    of_index = None if listed is None else listed.index
    data = read_listed(uri, max_bytes=limits.INDEX_BYTES, listed=of_index)
    needed = ("offset", *_IndexRow._fields[:-1])
    columns = [*needed, "crc32c"]
    table = read_parquet(data, uri=uri, columns=columns, max_rows=limits.INDEX_ROWS, filled=needed)
    for column in needed:
        if column not in table.column_names:
            raise DamagedError(uri=uri, problem=f"has no column {column!r}")
    return {row.pop("offset"): _IndexRow(**{"crc32c": None, **row}) for row in table.to_pylist()}


def _verify(file: StoredFile) -> str:
    return f"check it with `shardbeam verify {posixpath.dirname(file.uri) or '.'}`"


class _Classes:
    """The classes of a file's Examples, and those that the files beside it declare.

    Attributes:
        lost: The classes of objects without a box.
    """

    def __init__(self, feature_map: FeatureMap, *, uri: str) -> None:
        self._feature_map = feature_map
        self._uri = uri
        self._ids = {name: label_id for label_id, name in feature_map.class_names.items()}
        self._found: dict[tuple[str, int], None] = {}
        self._keypoints: tuple[str, ...] = ()
        self.lost: dict[str, Mapping[str, int]] = {}

    def add(self, picture: Picture) -> None:
        """Adds the classes of a picture, and the names of its keypoints."""
        self._found.update(
            dict.fromkeys(
                [
                    *zip(picture.labels, picture.label_ids, strict=True),
                    *(class_of(item) for item in picture.objects),
                ]
            )
        )
        self._keypoints = self._keypoints or keypoint_names(picture, feature_map=self._feature_map)

    def categories(self) -> Iterator[Category]:
        """Yields the classes; those of the files beside have the folder as their origin."""
        declared = [
            (name, label_id, posixpath.dirname(self._uri)) for name, label_id in self._ids.items()
        ]
        found = [
            (name, label_id, self._uri)
            for name, label_id in self._found
            if label_id not in (self._ids.get(name, label_id), NO_ID) or name not in self._ids
        ]
        has_names = any(name != str(label_id) for name, label_id, _ in (*declared, *found))
        for name, label_id, origin in (*declared, *found):
            yield Category(
                name=name,
                source_id=None if label_id == NO_ID else label_id,
                origin=origin,
                keypoints=self._keypoints,
                skeleton=self._feature_map.skeletons.get(name, ()) if self._keypoints else (),
                # Beside named classes, an object without a name and with id 0 has no class.
                is_background=has_names and (name, label_id) == ("0", 0),
            )
        yield from lost_classes(self.lost, origin=self._uri)
