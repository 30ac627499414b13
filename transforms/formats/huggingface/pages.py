"""Finds where the images of Parquet and Arrow files lie in them, without copying or decoding them.

In an uncompressed PLAIN page of Parquet, each value is its length (u32, little-endian) and its
bytes, after the definition levels, which say which values are null. pyarrow gives no positions of
values, and aborts on some damaged metadata of columns, so footers and page headers are parsed here.

The format: https://github.com/apache/parquet-format
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet, types

from shardbeam.transforms.core.errors import DamagedError, InputError, reading
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.buffered_reader import StorageReader
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import read_at
from shardbeam.transforms.storage.parquet import (
    PARQUET_ERRORS,
    ParquetRows,
    describe_parquet_error,
    raise_shortage,
)

# Reads the few structs of Thrift's compact protocol that Parquet files hold, within limits.
#
# The protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

# Values of a footer, which has about 35 for each column of a row group.
_VALUES = 2_000_000
_DEPTH = 16
_VARINT_BYTES = 10
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

T = TypeVar("T")
# The fields of a struct by their numbers.
Struct = dict[int, object]


class ThriftError(ValueError):
    """The bytes are not what was expected."""


class ShortError(ThriftError):
    """The bytes end within a value."""


def read_struct(data: bytes) -> tuple[Struct, int]:
    """Reads a struct, and returns it with its length in bytes.

    Raises:
        ThriftError: The bytes are no struct.
    """
    reader = _Reader(data)
    return reader.struct(0), reader.position


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads an unsigned number, and returns it with the position after it.

    Raises:
        ThriftError: It is longer than 64 bits, or not all there.
    """
    number = 0
    for index, byte in enumerate(data[position : position + _VARINT_BYTES]):
        number |= (byte & 127) << (7 * index)
        if byte < 128:
            return number, position + index + 1
    if position + _VARINT_BYTES > len(data):
        raise ShortError("ends within a number")
    raise ThriftError("has a number of more than 64 bits")


def get(struct: Struct, number: int, kind: type[T], *, default: T | None = None) -> T:
    """Returns a field of the expected type.

    Raises:
        ThriftError: It is of another type, or missing without a default.
    """
    value = struct.get(number, default)
    if type(value) is not kind:
        raise ThriftError(f"field {number} is not a {kind.__name__}")
    return value


class _Reader:
    """Reads values from `position` on."""

    def __init__(self, data: bytes) -> None:
        self.position = 0
        self._data = data
        self._left = _VALUES

    def struct(self, depth: int) -> Struct:
        found: Struct = {}
        number = 0
        while header := self._byte():
            kind = header & 15
            number = number + (header >> 4) if header >> 4 else self._integer()
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> object:
        self._left -= 1
        if depth > _DEPTH or self._left < 0:
            raise ThriftError("has too many values")
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _BINARY:
            return self._take(self._varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            header = self._byte()
            size = header >> 4 if header >> 4 < 15 else self._varint()
            # Each item takes a byte, so a size that is not true ends with the data.
            return [self._value(header & 15, depth + 1) for _ in range(size)]
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind == _DOUBLE:
            return self._take(8)
        raise ThriftError(f"has a value of type {kind}")

    def _byte(self) -> int:
        if self.position >= len(self._data):
            raise ShortError("ends within a value")
        self.position += 1
        return self._data[self.position - 1]

    def _take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise ShortError("ends within a value")
        value = self._data[self.position : end]
        self.position = end
        return value

    def _varint(self) -> int:
        value, self.position = read_varint(self._data, self.position)
        return value

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


_MAGIC, _TAIL_BYTES, _FOOTER_BYTES = b"PAR1", 8, 16 << 20
_ROWS = 10_000_000
# Page headers have 30 bytes, and more with the smallest and largest value.
_HEADER_BYTES, _MAX_HEADER_BYTES = 4 << 10, 1 << 20
# The fields of a page header by its type: the header of its kind, and the encoding in it.
_DATA_PAGES = {0: (5, 2), 3: (8, 4)}
_PLAIN, _RLE, _BIT_PACKED, _DICTIONARIES = 0, 3, 4, {2, 8}
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")

_Read = Callable[[int, int], bytes]


class StoredImage(msgspec.Struct, frozen=True):
    """An image of a row.

    Attributes:
        offset: Where its bytes begin in the file; -1 if the row has no bytes.
        size: How many there are.
        path: The path that the row gives it.
    """

    offset: int
    size: int
    path: str | None


class _Chunk(msgspec.Struct, frozen=True):
    """The images of a row group."""

    place: str
    codec: int
    encodings: Sequence[object]
    begin: int
    end: int
    rows: int
    max_level: int


class ImageColumn(NamedTuple):
    """What the footer of a Parquet file says about a column of images.

    Attributes:
        rows: How many rows the file has.
        why_not: Why the images have no place in the file, such as `compressed (SNAPPY)`; empty if
            `stored_images` can find them.
    """

    rows: int
    why_not: str


def read_image_column(uri: str, *, storage: Storage, column: str) -> ImageColumn:
    """Reads what the footer of a Parquet file says about a column of images.

    Args:
        uri: A Parquet file.
        storage: Its storage.
        column: A column of images: a struct of `bytes` and `path`, or bytes.

    Raises:
        InputError: It is no Parquet file, is damaged, or has no such column.
    """
    with _opened(uri, storage=storage) as (read, size):
        chunks = list(_chunks(uri, read=read, size=size, column=column))
    reasons = filter(None, map(_why_not, chunks))
    return ImageColumn(sum(chunk.rows for chunk in chunks), next(reasons, ""))


def _why_not(chunk: _Chunk) -> str:
    if chunk.codec:
        is_known = 0 < chunk.codec < len(_CODECS)
        return f"compressed ({_CODECS[chunk.codec] if is_known else f'codec {chunk.codec}'})"
    others = {*chunk.encodings} - {_PLAIN, _RLE, _BIT_PACKED}
    if others & _DICTIONARIES:
        return "dictionary encoded"
    return "delta encoded" if others else ""


def is_empty(uri: str, *, storage: Storage, column: str) -> bool:
    """Whether a column of images holds none in any row, by the statistics in the footer.

    Raises:
        InputError: It is no Parquet file, or is damaged.
    """
    with _damaged(uri, f"column {column}", errors=PARQUET_ERRORS):
        source = pa.PythonFile(_reader(uri, storage=storage), mode="r")
        metadata = parquet.read_metadata(source)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for each in map(group.column, range(group.num_columns)):
                if each.path_in_schema in (column, f"{column}.bytes"):
                    known = each.statistics
                    if known is None or known.null_count != each.num_values:
                        return False
    return True


def stored_images(uri: str, *, storage: Storage, column: str) -> Iterator[StoredImage]:
    """Yields where the images of a column lie in a Parquet file, one for each row, in order.

    Only the lengths of the images are read; in remote storage in blocks of 8 MB, because a request
    for each would take longer.

    Args:
        uri: A Parquet file whose column is neither compressed nor dictionary
            encoded (`read_image_column`).
        storage: Its storage.
        column: A column of images: a struct of `bytes` and `path`, or bytes.

    Raises:
        InputError: It is no such file, is damaged, or has no such column.
    """
    with _opened(uri, storage=storage) as (read, size):
        paths = _paths(uri, storage=storage, column=column)
        for chunk in _chunks(uri, read=read, size=size, column=column):
            for offset, length in _places(uri, chunk=chunk, read=read):
                yield StoredImage(offset, length, next(paths))


@contextlib.contextmanager
def _opened(uri: str, *, storage: Storage) -> Iterator[tuple[_Read, int]]:
    """Gives a function that reads ranges of a file, and the file's length."""
    stored = storage.find(uri)
    with reading(uri):
        file = storage.open_local(uri)
        if file is None:
            yield _reader(uri, storage=storage).read_at, stored.size_bytes
            return
        with file:
            descriptor = file.fileno()
            yield (lambda offset, size: read_at(descriptor, offset, size)), stored.size_bytes


def _reader(uri: str, *, storage: Storage) -> StorageReader:
    stored = storage.find(uri)
    return StorageReader(ImageRef(uri=uri, size_bytes=stored.size_bytes, version=stored.version))


def _map(uri: str, *, storage: Storage) -> pa.Buffer | None:
    """Maps a file on this machine's disks into memory; returns None for others."""
    file = storage.open_local(uri)
    if file is None:
        return None
    with file:
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _paths(uri: str, *, storage: Storage, column: str) -> Iterator[str | None]:
    """Yields the paths that the rows give their images; nothing if they give none."""
    with _damaged(uri, f"column {column}.path", errors=PARQUET_ERRORS):
        # Not mapped into memory: a process dies if a mapped file is truncated.
        source = pa.PythonFile(_reader(uri, storage=storage), mode="r")
        file = ParquetRows(source, uri=uri)
        kind = file.schema.field(column).type
        if not types.is_struct(kind) or kind.get_field_index("path") < 0:
            yield from itertools.repeat(None)
        for group in range(len(file.group_rows)):
            for batch in file.read_group(group, columns=[f"{column}.path"]):
                yield from batch.column(0).flatten()[0].to_pylist()
        raise ThriftError("has fewer paths than images")


def _chunks(uri: str, *, read: _Read, size: int, column: str) -> Iterator[_Chunk]:
    """Yields the chunk of images of each row group, as the footer gives it."""
    with _damaged(uri, "footer", errors=PARQUET_ERRORS):
        end = size - _TAIL_BYTES
        tail = read(end, _TAIL_BYTES) if end >= len(_MAGIC) else b""
        if tail[4:] == b"PARE":
            raise InputError(uri=uri, problem="its footer is encrypted; write it without")
        if tail[4:] != _MAGIC:
            raise ThriftError("is no Parquet file, or only the beginning of one")
        length = int.from_bytes(tail[:4], "little")
        if length > min(_FOOTER_BYTES, end - len(_MAGIC)):
            raise ThriftError(f"has {length:,} bytes, more than the file or than {_FOOTER_BYTES:,}")
        data = read(end - length, length)
        footer, _ = read_struct(data)
        schema = parquet.read_metadata(pa.BufferReader(_MAGIC + data + tail)).schema
        leaves = [schema.column(number) for number in range(len(schema))]
        named = {(leaf.path, leaf.name): number for number, leaf in enumerate(leaves)}
        index = named.get((f"{column}.bytes", "bytes"), named.get((column, column)))
        groups = get(footer, 4, list, default=[])
    if index is None:
        raise _no_column(uri, column)
    rows = 0
    for number, group in enumerate(groups):
        place = f"row group {number}"
        with _damaged(uri, place):
            if not get(_typed(group), 3, int):
                continue
            chunk = _chunk(group, index, leaves[index], place=place, limit=end)
            rows += chunk.rows
            # Equal rows take few bytes, but not images.
            if rows > min(_ROWS, size):
                raise ThriftError(f"brings the rows to {rows:,}, which is too many for this file")
        yield chunk
    with _damaged(uri, "footer"):
        if rows != (said := get(footer, 3, int)):
            raise ThriftError(f"says that it has {said:,} rows, and its row groups have {rows:,}")


def _typed(value: object) -> Struct:
    if not isinstance(value, dict):
        raise ThriftError("is not a struct")
    return value


def _chunk(
    group: Struct, index: int, leaf: parquet.ColumnSchema, *, place: str, limit: int
) -> _Chunk:
    if leaf.physical_type != "BYTE_ARRAY" or leaf.max_repetition_level:
        raise ThriftError("has a column of lists, or of no bytes")
    columns = get(group, 1, list)
    if index >= len(columns):
        raise ThriftError("is missing")
    column = _typed(columns[index])
    if column.get(1) or 3 not in column:
        raise ThriftError("lies in another file, or is encrypted")
    metadata = _typed(column[3])
    begin, length = get(metadata, 9, int), get(metadata, 7, int)
    # Some writers write 0 for "none".
    dictionary = get(metadata, 11, int, default=0)
    if 0 < dictionary < begin:
        begin = dictionary
    rows, values = get(group, 3, int), get(metadata, 5, int)
    if not (len(_MAGIC) <= begin and 0 <= length <= limit - begin):
        raise ThriftError("lies outside of the file")
    if not 0 <= rows == values:
        raise ThriftError(f"has {values:,} values in {rows:,} rows")
    encodings, codec = get(metadata, 2, list), get(metadata, 4, int)
    return _Chunk(place, codec, encodings, begin, begin + length, rows, leaf.max_definition_level)


def _places(uri: str, *, chunk: _Chunk, read: _Read) -> Iterator[tuple[int, int]]:
    """Yields offset and size of each image of a chunk, (-1, 0) for null."""
    if chunk.codec:
        raise _not_plain(uri, chunk.place)
    position, seen, number = chunk.begin, 0, 0
    while seen < chunk.rows:
        place = f"{chunk.place}, page {number}"
        with _damaged(uri, place):
            header, begin = _header(read, position, chunk.end)
            kind, position = get(header, 1, int), begin + get(header, 3, int)
            if not begin <= position <= chunk.end:
                raise ThriftError("does not end within its column")
            number += 1
            if kind not in _DATA_PAGES:
                continue
            details_field, encoding_field = _DATA_PAGES[kind]
            details = _typed(header.get(details_field))
            if get(details, encoding_field, int) != _PLAIN:
                raise _not_plain(uri, place)
            count = get(details, 1, int)
            seen += count
            if count < 0 or seen > chunk.rows:
                raise ThriftError("has more values than its row group has rows")
            yield from _values(
                details,
                version=1 if kind == 0 else 2,
                chunk=chunk,
                read=read,
                begin=begin,
                end=position,
            )


def _header(read: _Read, begin: int, end: int) -> tuple[Struct, int]:
    """Reads a page header, and returns it with the position after it."""
    size = _HEADER_BYTES
    while True:
        try:
            header, length = read_struct(read(begin, min(size, end - begin)))
        except ShortError:
            if size >= min(_MAX_HEADER_BYTES, end - begin):
                raise
            size *= 16
        else:
            return header, begin + length


def _values(
    details: Struct, *, version: int, chunk: _Chunk, read: _Read, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yields offset and size of each value of a PLAIN page, (-1, 0) for null."""
    count, levels = get(details, 1, int), 0
    if version == 2:
        levels = get(details, 5, int)
        if get(details, 6, int) or not 0 <= levels <= end - begin:
            raise ThriftError("has levels that do not fit")
    elif chunk.max_level:
        if get(details, 3, int) != _RLE:
            raise ThriftError("has levels in an encoding that is no longer in use")
        levels = _length(read, begin, end)
        begin += 4
    runs: Iterator[tuple[int, int]] = iter([(0, count)])
    if chunk.max_level:
        # A run of levels takes 2 bytes, and is for one value or more.
        if levels > 2 * count + _HEADER_BYTES:
            raise ThriftError("has more levels than values")
        runs = _runs(read(begin, levels), width=chunk.max_level.bit_length(), count=count)
    position = begin + levels
    for level, run in runs:
        if level > chunk.max_level:
            raise ThriftError("has a level that its column does not have")
        for _ in range(run):
            if level < chunk.max_level:
                yield -1, 0
                continue
            size = _length(read, position, end)
            yield position + 4, size
            position += 4 + size
    if position != end:
        raise ThriftError("is longer than its values")


def _length(read: _Read, position: int, end: int) -> int:
    """Reads the length of what follows at `position`, and ends at `end` or before."""
    data = read(position, 4) if position + 4 <= end else b""
    size = int.from_bytes(data, "little")
    if len(data) < 4 or size > end - position - 4:
        raise ThriftError("has a value that does not end within it")
    return size


def _runs(data: bytes, *, width: int, count: int) -> Iterator[tuple[int, int]]:
    """Yields `count` values as runs of equal ones, from the RLE/bit-packed hybrid encoding."""
    position = 0
    while count > 0:
        header, position = read_varint(data, position)
        # Groups of 8 values, or one value as often as the header says.
        groups = min(header >> 1, (count + 7) // 8) if header & 1 else 1
        for _ in range(groups):
            size = width if header & 1 else (width + 7) // 8
            if position + size > len(data):
                raise ShortError("ends within its levels")
            bits = int.from_bytes(data[position : position + size], "little")
            position += size
            if header & 1:
                run = min(8, count)
                yield from (((bits >> (width * at)) & ((1 << width) - 1), 1) for at in range(run))
            else:
                run = min(header >> 1, count)
                yield bits, run
            count -= run


def _not_plain(uri: str, place: str) -> InputError:
    problem = (
        "its images are compressed or dictionary encoded, so they have no place in the file; "
        "`shardbeam unpack` writes such files again, without"
    )
    return InputError(uri=uri, place=place, problem=problem)


def _no_column(uri: str, column: str) -> InputError:
    problem = f"has no column {column!r} of images: a struct of bytes and path, or bytes"
    return InputError(uri=uri, problem=problem)


@contextlib.contextmanager
def _damaged(
    uri: str, place: str, *, errors: tuple[type[Exception], ...] = (ValueError,)
) -> Iterator[None]:
    """Adds file and place to what is wrong with bytes."""
    try:
        yield
    except errors as error:
        if isinstance(error, InputError):
            raise
        # Nothing here asks for more than the file has.
        raise_shortage(error, uri=uri, most_bytes=storage_for(uri).find(uri).size_bytes)
        problem = f"is damaged: {describe_parquet_error(error)}; download the file again"
        raise DamagedError(uri=uri, place=place, problem=problem) from error


def stored_arrow_images(
    uri: str, *, storage: Storage, column: str, may_be_cut: bool = False
) -> Iterator[StoredImage]:
    """Yields where the images of a column lie in an Arrow stream, one for each row, in order.

    Args:
        uri: A file `data-*.arrow` of `save_to_disk`, on this machine's disks.
        storage: Its storage.
        column: A column of images: a struct of `bytes` and `path`, or bytes.
        may_be_cut: Whether a stream may end without its mark, as one that is cut between two
            batches of rows does.

    Raises:
        InputError: It is no such file, is damaged or compressed, or has no such column.
    """
    storage.find(uri)
    with _damaged(uri, "", errors=PARQUET_ERRORS):
        whole = _map(uri, storage=storage)
        if whole is None:
            problem = "can only be read from a disk; copy the folder of the dataset to one"
            raise InputError(uri=uri, problem=problem)
        source = pa.BufferReader(whole)
        stream = pa.ipc.open_stream(source)
        index = _image_index(uri, schema=stream.schema, column=column)
    number = rows = 0
    while True:
        with _damaged(uri, f"record batch {number}", errors=PARQUET_ERRORS):
            end = source.tell()
            try:
                images = stream.read_next_batch().column(index)
            except StopIteration:
                break
            images.validate(full=True)
            found = _arrow_places(images, whole=whole)
        rows += len(images)
        yield from itertools.starmap(StoredImage, found)
        number += 1
    if source.tell() == end and not may_be_cut:
        raise DamagedError(
            uri=uri,
            place=f"byte {end:,}",
            problem="the mark of its end is missing, so that it may be the beginning of a longer "
            f"file: copy it again, or, to read only its {counted(rows, 'row')}, name the file "
            f"itself and not its folder: --data {shlex.quote(uri)}",
        )


def _image_index(uri: str, *, schema: pa.Schema, column: str) -> int:
    """Finds a column of images.

    Raises:
        InputError: There is none.
    """
    index: int = schema.get_field_index(column)
    kind = schema.field(index).type if index >= 0 else pa.null()
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise _no_column(uri, column)
    return index


def _arrow_places(images: pa.Array, *, whole: pa.Buffer) -> Iterator[tuple[int, int, str | None]]:
    """Finds offset, size and path of each image in an array whose buffers lie in a file's map."""
    paths: Sequence[str | None] = [None] * len(images)
    if types.is_struct(images.type):
        # Null structs make their children null; the buffers of values stay where they are.
        children = images.flatten()
        index = images.type.get_field_index("path")
        if index >= 0 and types.is_string(images.type.field(index).type):
            paths = children[index].to_pylist()
        images = children[images.type.get_field_index("bytes")]
    _, ends, values = images.buffers()
    # A buffer of no bytes may lie anywhere.
    size = values.size if values else 0
    begin = values.address - whole.address if size else 0
    if not 0 <= begin <= whole.size - size:
        raise ThriftError("is compressed, so that its images have no place in the file")
    width = 8 if types.is_large_binary(images.type) else 4
    limits = np.frombuffer(ends, f"<i{width}", len(images) + 1, images.offset * width)
    valid = images.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.where(valid, limits[:-1] + begin, -1).tolist()
    sizes = np.where(valid, np.diff(limits), 0).tolist()
    return zip(offsets, sizes, paths, strict=True)
