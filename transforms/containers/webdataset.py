"""WebDataset: tar files in which the files of a sample follow each other.

Format: https://github.com/webdataset/webdataset. The sample `000000012`, named after its number in
the shard, has these files:

- `000000012.jpg` or `000000012.png`: the image;
- `000000012.image.segmentation.class.encoded.png`: any other key with exactly one image, with dots
  for slashes; `.bin` for bytes that are no image, such as bare pixels;
- `000000012.json`: all other keys, as Examples name them. Lists of images (masks of objects) are in
  base64.

The image's key does not name the files, because its dots and slashes would merge samples. A global
header of the tar (`SHARDBEAM.features`) says where each key is, so that the Example can be rebuilt;
other readers skip it. An empty shard has no header, because tarfile cannot open a tar that has
nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import math
import re
import struct
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.containers.base import (
    ChecksummedFile,
    Container,
    ExampleParts,
    ExampleSchema,
    WriteExample,
    copy_to_disk,
    serialize_example,
)
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.examples.columns import (
    IMAGE_TYPE,
    ColumnType,
    as_text,
    column_type,
    is_image,
    is_list,
)
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.archives.tar import TarMember, tar_members
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.buffered_reader import StorageReader
from shardbeam.transforms.storage.find import storage_for

_HEADER = "SHARDBEAM.features"
_JSON = "json"
# Extensions by the first bytes of an image, and that of other bytes.
_SIGNATURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png"}
_OTHER = "bin"
_EXTENSIONS = (*_SIGNATURES.values(), _OTHER)
# The extensions of the formats that `image/format` names.
_OF_FORMAT = {"jpeg": "jpg", "png": "png"}
# Stands for the image, whose extension has no beginning.
_IMAGE = "."
_BLOCK_BYTES = tarfile.BLOCKSIZE
_FLOAT32 = struct.Struct(">f")
# Begins the text that stands for a NaN with other bits than the usual one.
_NAN = "nan:"
# Exceptions of a sample that Shardbeam has not written.
_NO_SAMPLE = (AttributeError, KeyError, TypeError, ValueError, RecursionError)


class _Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a key of the Example is in a sample.

    Attributes:
        key: The key.
        kind: The kind of its list.
        file: The beginning of the file's extension that holds its only value, or `_IMAGE`;
            empty if the value is in the JSON.
        base64: Whether the JSON holds it in base64.
        one: Whether the JSON holds one value, not a list.
    """

    key: str
    kind: FeatureKind
    file: str = ""
    base64: bool = False
    one: bool = False

    def extensions(self) -> list[str]:
        """Lists the extensions that its file may have."""
        return [self._extension(end) for end in _EXTENSIONS]

    def extension(self, data: bytes) -> str:
        """Returns the extension of the file that holds these bytes."""
        ends = (end for begin, end in _SIGNATURES.items() if data.startswith(begin))
        return self._extension(next(ends, _OTHER))

    def _extension(self, end: str) -> str:
        return end if self.file == _IMAGE else f"{self.file}.{end}"


_fields_decoder = JsonDecoder(list[_Field])


class WebDataset(Container):
    """WebDataset tar files; a record's place is the byte where its first file's header begins."""

    suffix = ".tar"
    number_before_suffix = True
    # TFDS does not know it, and refuses it at once.
    tfds_name = "webdataset"
    media_type = "application/x-tar"
    readers = "webdataset, or with datasets.load_dataset(path)"
    checks_records = False
    recipe = (
        'import datasets\n\ndataset = datasets.load_dataset("path/to/this/folder", split={split})'
    )

    @contextlib.contextmanager
    def writer(self, file: ChecksummedFile, *, schema: ExampleSchema) -> Iterator[WriteExample]:
        """Returns a function that writes a sample for each Example."""
        fields = _plan_fields(schema.features)
        number = 0

        def write(example: ExampleParts) -> int:
            nonlocal number
            if not number:
                file.write(_global_header(fields))
            place = file.size_bytes
            for extension, data in _sample_files(example.features(), fields=fields):
                # By default the time, the user, the group and the mode of each file are the same.
                info = tarfile.TarInfo(f"{number:09d}.{extension}")
                info.size = len(data)
                file.write(info.tobuf(tarfile.PAX_FORMAT), data, bytes(-len(data) % _BLOCK_BYTES))
            number += 1
            return place

        yield write
        file.write(bytes(2 * _BLOCK_BYTES))

    def read(
        self, file: StoredFile, *, start: int = 0, see: Callable[[bytes], None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yields the Examples, after comparing the file's checksum."""
        with copy_to_disk(file, see=see) as path, open(path, "rb") as local:
            fields: list[_Field] | None = None
            for place, members in _samples(path, start=start, shard=file):
                if fields is None:
                    fields = _read_fields(path, shard=file)
                try:
                    yield place, _rebuild(_read_sample(local, members), fields=fields)
                except _NO_SAMPLE as error:
                    raise DamagedError(
                        uri=file.uri,
                        place=self.describe_place(place),
                        problem=f"not a sample of Shardbeam: {error!r}",
                    ) from error

    def describe_place(self, place: int) -> str:
        """Returns "byte" and its number."""
        return f"byte {place}"

    def columns(
        self, schema: ExampleSchema, *, image_formats: Sequence[str]
    ) -> Mapping[str, ColumnType]:
        """Returns a column for each file of a sample, with those of the JSON in one."""
        columns: dict[str, ColumnType] = {}
        in_json: dict[str, ColumnType] = {}
        for spec, field in zip(schema.features, _plan_fields(schema.features), strict=True):
            kind = column_type(spec, label_map=schema.label_map)
            if not field.file:
                in_json[spec.key] = kind if spec.kind is not FeatureKind.BYTES else as_text(kind)
            elif field.file == _IMAGE:
                ends = {_OF_FORMAT.get(name, _OTHER) for name in image_formats}
                columns.update((end, IMAGE_TYPE) for end in _EXTENSIONS if end in ends)
            else:
                columns[f"{field.file}.{'png' if is_image(spec) else _OTHER}"] = kind
        return {**columns, _JSON: in_json, "__key__": "string", "__url__": "string"}


CONTAINER = WebDataset()


def _plan_fields(features: Sequence[FeatureSpec]) -> list[_Field]:
    """Decides where each key is in a sample."""
    fields = []
    taken = {""}
    for spec in features:
        name = ""
        is_file = is_image(spec) or spec.role is FeatureRole.DATA
        if is_file and not is_list(spec):
            is_first = spec.role is FeatureRole.IMAGE and _IMAGE not in taken
            name = _IMAGE if is_first else _file_name(spec.key, taken=taken)
            taken.add(name)
        fields.append(
            _Field(
                key=spec.key,
                kind=spec.kind,
                file=name,
                base64=is_file and not name,
                one=not name and not is_list(spec),
            )
        )
    return fields


def _file_name(key: str, *, taken: Collection[str]) -> str:
    """Makes the beginning of an extension from a key; readers compare it in lower case."""
    name = re.sub(r"[^a-z0-9_-]+", ".", key.lower()).strip(".") or "feature"
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
    return next(each for each in names if each not in taken)


def _global_header(fields: Sequence[_Field]) -> bytes:
    """Renders the header of a tar with samples; tarfile writes it when it opens a new tar."""
    header = io.BytesIO()
    text = msgspec.json.encode(fields).decode()
    tarfile.TarFile(
        fileobj=header, mode="w", format=tarfile.PAX_FORMAT, pax_headers={_HEADER: text}
    )
    return header.getvalue()


def _sample_files(
    features: Mapping[str, Sequence[Any]], *, fields: Sequence[_Field]
) -> Iterator[tuple[str, bytes]]:
    """Yields the files of a sample, `(extension, content)`; the JSON is the last one."""
    in_json: dict[str, Any] = {}
    for field in fields:
        values = features[field.key]
        if field.file:
            (data,) = values
            yield field.extension(data), data
            continue
        texts = _to_json(values, field=field)
        in_json[field.key] = texts[0] if field.one else texts
    yield _JSON, json.dumps(in_json, separators=(",", ":")).encode()


def _to_json(values: Sequence[Any], *, field: _Field) -> list[Any]:
    if field.base64:
        return [base64.b64encode(value).decode() for value in values]
    if field.kind is FeatureKind.BYTES:
        # Bytes that are not UTF-8 become lone surrogates, which JSON can escape.
        return [value.decode(errors="surrogateescape") for value in values]
    if field.kind is FeatureKind.INT64:
        return list(map(int, values))
    # As an Example holds them, with the fewest digits that give the same 32 bits back.
    return [_float_to_json(value) for value in np.asarray(values, np.float32)]


def _float_to_json(value: np.float32) -> float | str:
    if not np.isnan(value):
        return float(str(value))
    bits = _FLOAT32.pack(value)
    return math.nan if bits == _FLOAT32.pack(math.nan) else f"{_NAN}{bits.hex()}"


def _from_json(values: Sequence[Any], *, field: _Field) -> Sequence[Any]:
    """Undoes `_to_json`; protobuf checks the types of numbers."""
    if field.base64:
        return [base64.b64decode(value, validate=True) for value in values]
    if field.kind is FeatureKind.BYTES:
        return [value.encode(errors="surrogateescape") for value in values]
    if field.kind is FeatureKind.FLOAT:
        return [
            _FLOAT32.unpack(bytes.fromhex(value.removeprefix(_NAN)))[0]
            if isinstance(value, str)
            else value
            for value in values
        ]
    return values


def _rebuild(content: Mapping[str, bytes], *, fields: Sequence[_Field]) -> bytes:
    """Serializes the Example of a sample.

    Args:
        content: `{extension: content}` of the sample's files.
        fields: Where its keys are.
    """
    in_json = json.loads(content[_JSON])
    features: dict[str, tuple[FeatureKind, Sequence[Any]]] = {}
    for field in fields:
        if field.file:
            values: Sequence[Any] = [
                content[each] for each in field.extensions() if each in content
            ]
            if len(values) != 1:
                raise ValueError(f"{len(values)} files hold {field.key!r}")
        else:
            found = in_json[field.key]
            values = _from_json([found] if field.one else found, field=field)
        features[field.key] = field.kind, values
    return serialize_example(features)


def _samples(path: str, *, start: int, shard: StoredFile) -> Iterator[tuple[int, list[TarMember]]]:
    """Yields the samples of a tar from a place on: `(place, its files)`."""
    copy = storage_for(path).find(path)
    part = ImageRef(
        uri=path, size_bytes=copy.size_bytes - start, version=copy.version, offset=start
    )
    members = tar_members(StorageReader(part))
    try:
        for _, sample in itertools.groupby(members, lambda each: each.name.partition(".")[0]):
            found = list(sample)
            yield found[0].file.offset - _BLOCK_BYTES, found
    except InputError as error:
        byte = start + int(error.place.removeprefix("byte "))
        raise DamagedError(uri=shard.uri, place=f"byte {byte}", problem=error.problem) from error


def _read_sample(local: BinaryIO, members: Iterable[TarMember]) -> dict[str, bytes]:
    """Reads the files of a sample: `{extension: content}`."""
    content: dict[str, bytes] = {}
    for member in members:
        extension = member.name.partition(".")[2]
        file = member.refuse_link("a link")
        if extension in content or file.problem or file.size_bytes > limits.RECORD_BYTES:
            raise ValueError(f"{member.name!r}: {file.problem or 'is twice in it, or too large'}")
        local.seek(file.offset)
        content[extension] = local.read(file.size_bytes)
    return content


def _read_fields(path: str, *, shard: StoredFile) -> list[_Field]:
    """Reads the header that says where the keys are.

    Raises:
        DamagedError: The tar has no such header.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            return _fields_decoder.decode(tar.pax_headers[_HEADER])
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise DamagedError(
            uri=shard.uri,
            problem="not a shard of Shardbeam, whose tars have a header that names their keys; "
            "build a dataset from other tars with the format webdataset",
        ) from error
