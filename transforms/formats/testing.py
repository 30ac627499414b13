"""A test kit for formats, which reads a source as a build does, without pixels, and checks it.

    def test_my_format() -> None:
        report = check_format(MyFormat(images="images", annotations=["boxes.txt"]))
        assert report.annotations["a.jpg"].objects[0].label == "cat"

It asserts what a build relies on. A format's own tests check the rest by the report, which holds
everything that was read.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.labels import LabelSettings, build_label_map
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ListedFile,
    ListedImage,
    MaskRole,
    Reject,
    Value,
    decode_annotations,
    role_of_mask,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.features import ExtraFeature, FeatureKind, FeatureRole
from shardbeam.transforms.formats.base import Format, Kind, Role
from shardbeam.transforms.formats.join.join import join_items
from shardbeam.transforms.formats.join.sources import (
    JoinSettings,
    PlacedFile,
    Source,
    find_join_key,
    list_files,
    read_listed_file,
)
from shardbeam.transforms.formats.names import key_problem, normalize_key
from shardbeam.transforms.storage.archives.open import expand_root
from shardbeam.transforms.storage.base import ListingPart, Storage, StoredFile
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.image_bytes import read_bytes
from shardbeam.transforms.storage.local import LocalStorage

_SOURCE = "source"
_SPLIT = "train"
# Number of parts that a file is read in, if it can be read in parts.
_PARTS = 7
_MASK_KINDS = {
    MaskRole.PANOPTIC: Kind.PANOPTIC,
    MaskRole.SEMANTIC: Kind.SEMANTIC,
    MaskRole.VOC_CLASS: Kind.SEMANTIC,
    MaskRole.VOC_OBJECT: Kind.INSTANCE_MASKS,
}


class FormatReport(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a source, as a build would see it before it reads images.

    Attributes:
        annotations: `{key: annotations}` of every image, or row, that would be written.
        splits: `{key: split}` of these.
        rejects: The rejects.
        excluded: `{rule: count}` of the images that rules leave out.
        categories: The declared categories.
    """

    annotations: Mapping[str, ImageAnnotations]
    splits: Mapping[str, str]
    rejects: tuple[Reject, ...]
    excluded: Mapping[str, int]
    categories: tuple[Category, ...]


class _Read(msgspec.Struct, frozen=True):
    """What was read: each image and entry with what it is joined by, and the categories."""

    items: list[tuple[str, ListedImage | AnnotationEntry]] = []
    categories: list[Category] = []

    def add(self, item: AnnotationEntry | Category | ListedImage, *, join: str = "") -> None:
        if isinstance(item, Category):
            self.categories.append(item)
        else:
            self.items.append((join or item.key, item))

    @property
    def entries(self) -> list[AnnotationEntry]:
        return [item for _, item in self.items if isinstance(item, AnnotationEntry)]

    def sorted(self) -> list[bytes]:
        """Returns everything, in an order that does not depend on the order of reading."""
        items = [*self.items, *set(self.categories)]
        return sorted(msgspec.msgpack.encode(item, order="deterministic") for item in items)


def check_format(source_format: Format, *, damages: int = 100) -> FormatReport:
    """Checks on a source that a format fulfils the contract of `Format`.

    The checks are: its fields, resolved or not, can travel to workers; everything is the same when
    it is read again, or in other parts; keys, positions, kinds, extra features, categories and
    splits fit together; details of defects name no folder of this machine; and damaged annotation
    files only give entries or an `InputError` that names the file.

    Args:
        source_format: The format, made of keys whose paths are absolute.
        damages: Number of damaged versions of each annotation file that are read.

    Returns:
        Everything that was read.

    Raises:
        AssertionError: The format breaks the contract; the text says where.
        InputError: The source cannot be read.
    """
    made = _travelled(_travelled(source_format).resolve())
    _require(made.resolve() == made, "resolve: a second call changes the format")
    _check_features(made)
    read = _read(made)
    _require(read.sorted() == _read(made).sorted(), "a second reading gives something else")
    _check_entries(made, read)
    _check_parts(made, read)
    report = _join(made, read)
    _check_annotations(made, report)
    _check_damaged(made, damages=damages)
    return report


def _require(condition: object, problem: str) -> None:
    # Python's option -O removes `assert` statements.
    if not condition:
        raise AssertionError(problem)


def _travelled(made: Format) -> Format:
    travelled = MsgpackDecoder(type(made)).decode(msgspec.msgpack.encode(made))
    _require(travelled == made, f"a field has another value in workers: {made!r}")
    return travelled


def _check_features(made: Format) -> None:
    _require(
        isinstance(made.kinds, frozenset) and all(isinstance(kind, Kind) for kind in made.kinds),
        f"kinds: expected a frozenset of Kind, got {made.kinds!r}",
    )
    try:
        plan_features(EncoderSettings(kinds=made.kinds, extras=tuple(made.extra_features())))
    except ValueError as error:
        raise AssertionError(f"extra_features: {error}") from error
    for split in made.predefined_splits():
        _require(
            split.isascii() and split.isidentifier() and not split.startswith("_"),
            f"predefined_splits: {split!r} cannot be a split: a letter, then letters, digits and _",
        )


def _read(made: Format) -> _Read:
    read = _Read()
    for file_index in range(len(made.annotation_files())):
        for item in _read_file(made, file_index=file_index, parts=1):
            read.add(item)
    for placed in _listed(made):
        listed = placed.item()
        if isinstance(listed, ListedFile):
            for found in read_listed_file(listed, source_format=made):
                read.add(found)
        elif listed is not None:
            read.add(listed, join=placed.place.join)
    return read


def _listed(made: Format) -> Iterator[PlacedFile]:
    source = Source(_SOURCE, made)
    splits = SplitAssignment(by_source={_SOURCE: _SPLIT})
    for root, pattern in enumerate(made.roots()):
        pending: list[str | ListingPart] = [*expand_root(pattern)]
        for where in pending:
            for listed in list_files(source, where, root=root, splits=splits):
                if isinstance(listed, ListingPart):
                    pending.append(listed)
                elif isinstance(listed, PlacedFile):
                    _check_place(made, listed)
                    yield listed


def _check_place(made: Format, listed: PlacedFile) -> None:
    place, path = listed.place, listed.path
    _require(
        made.lists_annotations or place.role not in (Role.ANNOTATION, Role.BESIDE, Role.CONTAINER),
        f"place: {path!r} is a {place.role.name}; set lists_annotations = True",
    )
    _require(
        place.join or place.role in (Role.CONTAINER, Role.OTHER),
        f"place: {path!r} has no `join`",
    )
    _require(
        place.mask or place.role not in (Role.MASK, Role.ATTACHED),
        f"place: {path!r} is a {place.role.name} without `mask`",
    )
    _require(
        place.role is not Role.IMAGE
        or (place.key == normalize_key(place.key) and key_problem(place.key) is None),
        f"place: {place.key!r} cannot be a key; see normalize_key",
    )


def _read_file(
    made: Format, *, file_index: int, parts: int, storage: Storage | None = None
) -> Iterator[AnnotationEntry | Category | ListedImage]:
    uri = made.annotation_files()[file_index]
    storage = storage or storage_for(uri)
    if made.chunk_bytes is None:
        yield from made.read_annotations(storage=storage, file_index=file_index)
        return
    size_bytes = storage.find(uri).size_bytes
    bounds = sorted({size_bytes * part // parts for part in range(parts + 1)})
    for begin, end in zip(bounds, bounds[1:] or bounds, strict=False):
        yield from made.read_chunk(storage=storage, file_index=file_index, begin=begin, end=end)


def _check_entries(made: Format, read: _Read) -> None:
    places = Counter((entry.key, entry.file_index, entry.position) for entry in read.entries)
    folders = [*made.roots(), *(uri.rpartition("/")[0] for uri in made.annotation_files())]
    for entry in read.entries:
        what = f"entry {entry.key!r} (file {entry.file_index}, position {entry.position})"
        _require(key_problem(entry.key) is None, f"{what}: {key_problem(entry.key)}")
        _require(entry.position >= 0 and entry.file_index >= 0, f"{what}: negative")
        if made.annotation_files():
            _require(
                places[entry.key, entry.file_index, entry.position] == 1,
                f"{what}: two entries of one key have this position, so neither comes first",
            )
        if entry.defect is None:
            _require(
                entry.annotations or entry.split or entry.exclusion,
                f"{what}: it has no annotations, split, exclusion or defect",
            )
        else:
            _require(entry.detail, f"{what}: a defect without detail")
            _require(not entry.annotations, f"{what}: a defect with annotations")
        for folder in folders:
            _require(
                len(folder) < 2 or folder not in entry.detail,
                f"{what}: the detail names a folder of this machine: {entry.detail}",
            )
        if entry.split:
            _require(
                entry.split in made.predefined_splits(),
                f"{what}: split {entry.split!r} is not among predefined_splits(): "
                f"{list(made.predefined_splits())}",
            )


def _check_parts(made: Format, read: _Read) -> None:
    if made.chunk_bytes is None:
        return
    for file_index in range(len(made.annotation_files())):
        parts = list(_read_file(made, file_index=file_index, parts=_PARTS))
        entries = [item for item in parts if isinstance(item, AnnotationEntry)]
        whole = [entry for entry in read.entries if entry.file_index == file_index]
        _require(
            sum(map(_size, entries)) == sum(map(_size, whole))
            and {entry.key for entry in entries} == {entry.key for entry in whole},
            f"read_chunk: annotation file {file_index} gives other entries when it is read in "
            f"{_PARTS} parts",
        )


def _size(entry: AnnotationEntry) -> int:
    """Counts an entry's annotations; other parts may cut the entries of an image differently."""
    if entry.defect is not None or not entry.annotations:
        return 1
    annotations = decode_annotations(entry.annotations)
    return len(annotations.objects) + len(annotations.labels) + len(annotations.values)


def _join(made: Format, read: _Read) -> FormatReport:
    settings = JoinSettings(
        splits=SplitAssignment(
            by_source={_SOURCE: _SPLIT}, predefined=tuple(made.predefined_splits())
        ),
        labels=LabelSettings(),
    )
    items: defaultdict[str, list[tuple[str, ListedImage | AnnotationEntry]]] = defaultdict(list)
    for name, item in read.items:
        join_key = find_join_key(name, source_format=made)
        items[join_key.casefold()].append((join_key, item))
    found = [
        each.joined
        for folded in sorted(items)
        for each in join_items(items[folded], source=_SOURCE, source_format=made, settings=settings)
    ]
    names = {label for joined in found for label in joined.labels}
    categories = [*read.categories, *map(Category, sorted(names))]
    build_label_map(
        categories=categories, settings=settings.labels, objects=Kind.DETECTION in made.kinds
    )
    records = [joined.record for joined in found if joined.record is not None]
    return FormatReport(
        annotations={record.key: decode_annotations(record.annotations) for record in records},
        splits={record.key: record.split for record in records},
        rejects=tuple(reject for joined in found for reject in joined.rejects),
        excluded=Counter(joined.excluded.value for joined in found if joined.excluded is not None),
        categories=tuple(categories),
    )


def _check_annotations(made: Format, report: FormatReport) -> None:
    keypoints = {category.name: len(category.keypoints) for category in report.categories}
    extras = {extra.spec.key: extra for extra in made.extra_features()}
    for key, found in report.annotations.items():
        _require(
            len(found.labels) == 1 or not (made.single_label and Kind.CLASSIFICATION in made.kinds),
            f"{key}: {len(found.labels)} labels, but `single_label` says that there is one",
        )
        for kind, present in _found_kinds(found).items():
            _require(
                not present or kind in made.kinds,
                f"{key}: has {present}, but {kind} is not among `kinds`",
            )
        objects = [item.label for item in (*found.objects, *found.stuff)]
        for label in (*found.labels, *objects, *(segment.label for segment in found.segments)):
            _require(label in keypoints, f"{key}: label {label!r} is of no declared Category")
        _require(
            len(found.label_confidences) in (0, len(found.labels)),
            f"{key}: label_confidences are not parallel to labels",
        )
        for item in found.objects:
            _require(
                len(item.keypoints) in (0, 3 * keypoints[item.label]),
                f"{key}: {len(item.keypoints)} numbers of keypoints, but {item.label!r} has "
                f"{keypoints[item.label]} keypoints",
            )
            for name, value in item.attributes.items():
                _check_value(extras.get(name), (value,), per_object=True, what=f"{key}: {name!r}")
        for name, values in found.values.items():
            _check_value(extras.get(name), values, per_object=False, what=f"{key}: {name!r}")


def _found_kinds(found: ImageAnnotations) -> dict[Kind, str]:
    """Returns `{kind: its annotations, in words}`; the words are empty where there are none."""
    objects = found.objects
    kinds = {
        Kind.CLASSIFICATION: "labels" if found.labels else "",
        Kind.LABEL_CONFIDENCE: "label_confidences" if found.label_confidences else "",
        Kind.DETECTION: "objects" if objects else "",
        Kind.KEYPOINTS: "keypoints" if any(item.keypoints for item in objects) else "",
        Kind.INSTANCE_MASKS: "segmentations" if any(i.segmentation for i in objects) else "",
        Kind.CAPTIONS: "captions" if found.captions else "",
        Kind.PANOPTIC: "segments" if found.segments else "",
        Kind.SEMANTIC: "stuff" if found.stuff else "",
    }
    roles = map(role_of_mask, found.masks)
    return kinds | {_MASK_KINDS[role]: f"a mask of {role.value}" for role in roles}


def _check_value(
    extra: ExtraFeature | None, values: Sequence[Value], *, per_object: bool, what: str
) -> None:
    if extra is None or extra.per_object is not per_object:
        raise AssertionError(f"{what} is not declared by extra_features() ({per_object=})")
    spec = extra.spec
    types: tuple[type, ...] = (int, float)
    if spec.kind is FeatureKind.BYTES or spec.role is FeatureRole.LABEL:
        types = (str,)
    elif spec.kind is FeatureKind.INT64:
        types = (int,)
    for value in values:
        _require(isinstance(value, types), f"{what} holds {value!r}, not {spec.kind}")
    _require(
        per_object or spec.repeated or len(values) in (0, spec.length),
        f"{what} holds {len(values)} values, not one",
    )


def _check_damaged(made: Format, *, damages: int) -> None:
    for file_index, uri in enumerate(made.annotation_files()):
        for damaged in _damaged(storage_for(uri).read(uri), count=damages):
            storage = _OneFile(uri, damaged)
            with _allowing(uri, damaged):
                list(_read_file(made, file_index=file_index, parts=2, storage=storage))
    for placed in _listed(made):
        if placed.place.role in (Role.ANNOTATION, Role.BESIDE):
            with contextlib.suppress(RejectedError):
                content = read_bytes(placed.file)
                for damaged in _damaged(content, count=max(1, damages // 10)):
                    with _allowing("", damaged):
                        list(made.read_listed(damaged, path=placed.path, root=placed.root))


def _damaged(content: bytes, *, count: int) -> Iterator[bytes]:
    """Yields versions with bytes removed, changed or inserted; they are the same every time."""
    chance = random.Random(len(content))
    yield b""
    for _ in range(count):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 5))):
            begin = chance.randrange(len(damaged) + 1)
            length = chance.choice((0, 1, 1, 8, len(damaged)))
            damaged[begin : begin + length] = chance.randbytes(chance.choice((0, 0, 1, 1, 4)))
        yield bytes(damaged)


@contextlib.contextmanager
def _allowing(uri: str, damaged: bytes) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        _require(not uri or error.uri == uri, f"the error for a damaged {uri} names {error.uri}")
        _require(error.problem, f"the error for a damaged {uri} has no message")
    except Exception as error:
        raise AssertionError(
            f"a damaged {uri or 'listed annotation file'} raises {error!r}, not an InputError; its "
            f"content: {damaged[:200]!r}"
        ) from error


class _OneFile(LocalStorage):
    """A storage in which one file has other content."""

    def __init__(self, uri: str, content: bytes) -> None:
        self._uri = uri
        self._content = content

    def stat(self, uri: str) -> StoredFile | None:
        if uri != self._uri:
            return storage_for(uri).stat(uri)
        return StoredFile(path=uri, uri=uri, size_bytes=len(self._content), version="")

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        if uri != self._uri:
            return storage_for(uri).read(uri, offset=offset, size_bytes=size_bytes, version=version)
        return self._content[offset:][:size_bytes]
