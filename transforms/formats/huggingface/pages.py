"""Finds where the images of a Parquet file lie in it, without copying or decoding them.

In an uncompressed PLAIN page, each value is its length (u32, little-endian) and its bytes, after
the definition levels, which say which values are null. pyarrow gives no positions of values, and
aborts on some damaged metadata of columns, so footers and page headers are parsed here.

The format: https://github.com/apache/parquet-format
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from shardbeam.transforms.core.errors import DamagedError, InputError, unreadable
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.formats.huggingface.thrift import (
    ShortError,
    Struct,
    ThriftError,
    get,
    read_struct,
    read_varint,
)
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.local import read_at
from shardbeam.transforms.storage.reader import StorageReader

_MAGIC, _TAIL_BYTES = b"PAR1", 8
_FOOTER_BYTES = 16 << 20
_ROWS = 10_000_000
# Page headers have 30 bytes, and more with the smallest and largest value.
_HEADER_BYTES, _MAX_HEADER_BYTES = 4 << 10, 1 << 20
# A page of paths, which is read as a whole. Writers end pages at 1 MB, or at 20,000 values.
_PATHS_BYTES = 64 << 20
_BYTE_ARRAY, _REQUIRED, _REPEATED = 6, 0, 2
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_PLAIN, _RLE, _LEVELS = 0, 3, {3, 4}
_DICTIONARIES = {2, 8}
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
# Names in pyarrow of the codecs that it has.
_PYARROW_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}

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
    """The values of a column in a row group."""

    place: str
    codec: int
    encodings: Sequence[int]
    begin: int
    end: int
    values: int
    max_level: int


class _Page(msgspec.Struct, frozen=True):
    """The levels of a page, and where its values are.

    Attributes:
        place: Its place, for errors.
        encoding: How its values are encoded; -1 for a dictionary.
        count: How many values it has.
        levels: Definition levels; empty where no value can be null.
        read: Reads its values: from the file, or from the page after it was decompressed.
        begin: Where its values begin.
        end: Where they end.
    """

    place: str
    encoding: int
    count: int
    levels: bytes
    read: _Read
    begin: int
    end: int


def why_not(uri: str, *, storage: Storage, column: str) -> str | None:
    """Says why the images of a column have no place in the file, from its footer alone.

    Args:
        uri: A Parquet file.
        storage: Its storage.
        column: A column of images: a struct of `bytes` and `path`, or bytes.

    Returns:
        The reason, such as `compressed (SNAPPY)`; None if `stored_images` can find them.

    Raises:
        InputError: It is no Parquet file, is damaged, or has no such column.
    """
    with _opened(uri, storage=storage) as (read, size):
        for images, _ in _chunks(uri, read=read, size=size, column=column):
            if images.codec:
                return f"compressed ({_codec_name(images.codec)})"
            if others := set(images.encodings) - {_PLAIN} - _LEVELS:
                return "dictionary encoded" if others & _DICTIONARIES else "delta encoded"
    return None


def stored_images(uri: str, *, storage: Storage, column: str) -> Iterator[StoredImage]:
    """Yields where the images of a column lie in a Parquet file, one for each row, in order.

    Only the lengths of the images are read; in remote storage in blocks of 8 MB, because a request
    for each would take longer.

    Args:
        uri: A Parquet file whose column is neither compressed nor dictionary encoded (`why_not`).
        storage: Its storage.
        column: A column of images: a struct of `bytes` and `path`, or bytes.

    Raises:
        InputError: It is no such file, is damaged, or has no such column.
    """
    with _opened(uri, storage=storage) as (read, size):
        for images, paths in _chunks(uri, read=read, size=size, column=column):
            names = iter(()) if paths is None else _texts(uri, chunk=paths, read=read)
            for offset, length in _places(uri, chunk=images, read=read):
                yield StoredImage(offset, length, next(names, None))


@contextlib.contextmanager
def _opened(uri: str, *, storage: Storage) -> Iterator[tuple[_Read, int]]:
    """Gives a function that reads ranges of a file, and the file's length."""
    stored = storage.find(uri)
    try:
        file = storage.open_local(uri)
        if file is None:
            whole = ImageRef(uri=uri, size_bytes=stored.size_bytes, version=stored.version)
            yield StorageReader(whole).read_at, stored.size_bytes
            return
        with file:
            descriptor = file.fileno()
            yield (lambda offset, size: read_at(descriptor, offset, size)), stored.size_bytes
    except OSError as error:
        raise unreadable(uri, error) from error


def _chunks(
    uri: str, *, read: _Read, size: int, column: str
) -> Iterator[tuple[_Chunk, _Chunk | None]]:
    """Yields the chunks of images and paths of each row group."""
    with _damaged(uri, "footer"):
        end = size - _TAIL_BYTES
        tail = read(end, _TAIL_BYTES) if end >= len(_MAGIC) else b""
        if tail[4:] == b"PARE":
            raise InputError(uri=uri, problem="its footer is encrypted; write it without")
        if tail[4:] != _MAGIC:
            raise ThriftError("is no Parquet file, or only the beginning of one")
        length = int.from_bytes(tail[:4], "little")
        if length > min(_FOOTER_BYTES, end - len(_MAGIC)):
            raise ThriftError(f"has {length:,} bytes, more than the file or than {_FOOTER_BYTES:,}")
        footer, _ = read_struct(read(end - length, length))
        leaves = _leaves(get(footer, 2, list))
    names = [(column, "bytes"), (column,)]
    leaf = next((name for name in names if name in leaves), None)
    if leaf is None:
        problem = f"has no column {column!r} of images: a struct of bytes and path, or bytes"
        raise InputError(uri=uri, problem=problem)
    chosen = [leaf, (column, "path")] if len(leaf) > 1 and (column, "path") in leaves else [leaf]
    rows = 0
    for number, group in enumerate(get(footer, 4, list, default=[])):
        found = []
        for name in chosen:
            place = f"row group {number}, column {'.'.join(name)}"
            with _damaged(uri, place):
                index, max_level, kind = leaves[name]
                if kind != _BYTE_ARRAY:
                    raise ThriftError("is a column of lists, or not of bytes")
                found.append(_chunk(_typed(group), index, max_level, place=place, limit=end))
        rows += found[0].values
        if rows > _ROWS:
            raise DamagedError(uri=uri, problem=f"declares more than {_ROWS:,} rows")
        yield found[0], found[1] if len(found) > 1 else None


def _typed(value: object) -> Struct:
    if not isinstance(value, dict):
        raise ThriftError("is not a struct")
    return value


def _leaves(schema: Sequence[object]) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Finds the columns of values: `{path: (index, highest definition level, type)}`.

    The type is -1 below lists.
    """
    leaves: dict[tuple[str, ...], tuple[int, int, int]] = {}
    # The number of children that are still to come, the path, the level, and whether in a list.
    open_nodes: list[tuple[int, tuple[str, ...], int, bool]] = []
    count = 0
    for item in schema:
        node = _typed(item)
        children = get(node, 5, int, default=0)
        path: tuple[str, ...] = ()
        level, in_list = 0, False
        if open_nodes:
            left, path, level, in_list = open_nodes.pop()
            if left > 1:
                open_nodes.append((left - 1, path, level, in_list))
            path = (*path, get(node, 4, bytes).decode())
            repetition = get(node, 3, int)
            level += repetition != _REQUIRED
            in_list = in_list or repetition == _REPEATED
        if children > 0:
            open_nodes.append((children, path, level, in_list))
            if len(open_nodes) > len(schema) or len(path) > 100:
                raise ThriftError("nests too deeply")
        else:
            kind = -1 if in_list else get(node, 1, int, default=-1)
            leaves[path] = count, level, kind
            count += 1
    return leaves


def _chunk(group: Struct, index: int, max_level: int, *, place: str, limit: int) -> _Chunk:
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
    values = get(metadata, 5, int)
    if not (begin >= len(_MAGIC) and 0 <= length <= limit - begin):
        raise ThriftError("lies outside of the file")
    if values != get(group, 3, int) or values < 0:
        raise ThriftError(f"has {values:,} values, but the row group has another number of rows")
    encodings = get(metadata, 2, list)
    codec = get(metadata, 4, int)
    return _Chunk(place, codec, encodings, begin, begin + length, values, max_level)


def _pages(uri: str, *, chunk: _Chunk, read: _Read, whole: bool) -> Iterator[_Page]:
    """Yields the dictionary page, if there is one, and the data pages of a chunk.

    Args:
        uri: The file.
        chunk: The chunk.
        read: Reads ranges of the file.
        whole: Whether to read and decompress pages, and not leave their values in the file.
    """
    position, seen, number = chunk.begin, 0, 0
    while seen < chunk.values:
        place = f"{chunk.place}, page {number}"
        with _damaged(uri, place):
            header, length = _header(read, position, chunk.end)
            begin = position + length
            size = get(header, 3, int)
            if not 0 <= size <= chunk.end - begin:
                raise ThriftError("does not end within its column")
            page = _page(header, place=place, begin=begin, read=read, chunk=chunk, whole=whole)
            position = begin + size
            number += 1
            if page is None:
                continue
            if page.encoding != -1:
                seen += page.count
            if not 0 <= page.count <= chunk.values or seen > chunk.values:
                raise ThriftError("has more values than its row group has rows")
        yield page


def _header(read: _Read, position: int, end: int) -> tuple[Struct, int]:
    size = _HEADER_BYTES
    while True:
        try:
            return read_struct(read(position, min(size, end - position)))
        except ShortError:
            if size >= min(_MAX_HEADER_BYTES, end - position):
                raise
            size *= 16


def _page(
    header: Struct, *, place: str, begin: int, read: _Read, chunk: _Chunk, whole: bool
) -> _Page | None:
    """Makes a page from its header; None if it is neither of data nor a dictionary."""
    kind, size = get(header, 1, int), get(header, 3, int)
    fields = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}
    if kind not in fields:
        return None
    details = _typed(header.get(fields[kind]))
    count = get(details, 1, int)
    encoding = -1 if kind == _DICTIONARY_PAGE else get(details, 4 if kind else 2, int)
    if kind == _DATA_PAGE and chunk.max_level and get(details, 3, int) != _RLE:
        raise ThriftError("has levels in an encoding that has long been given up")
    levels_bytes = 0
    if kind == _DATA_PAGE_V2:
        levels_bytes = get(details, 5, int)
        if get(details, 6, int) or not 0 <= levels_bytes <= size:
            raise ThriftError("has levels that do not fit its column")
    end = begin + size
    if whole:
        unpacked = get(header, 2, int)
        if max(size, unpacked) > _PATHS_BYTES or unpacked < levels_bytes:
            raise ThriftError(f"has more than {_PATHS_BYTES:,} bytes, or less than its levels")
        data = read(begin, size)
        if chunk.codec and (kind != _DATA_PAGE_V2 or get(details, 7, bool, default=True)):
            rest = _decompress(data[levels_bytes:], size=unpacked - levels_bytes, codec=chunk.codec)
            data = data[:levels_bytes] + rest
        begin, end, read = 0, len(data), (lambda start, length: data[start : start + length])
    if kind == _DATA_PAGE and chunk.max_level:
        levels_bytes = _length(read, begin, end)
        begin += 4
    if kind == _DICTIONARY_PAGE or not chunk.max_level:
        levels = b""
    elif levels_bytes > min(end - begin, 2 * count + _HEADER_BYTES):
        raise ThriftError("has more levels than values")
    else:
        levels = read(begin, levels_bytes)
    return _Page(place, encoding, count, levels, read, begin + levels_bytes, end)


def _decompress(data: bytes, *, size: int, codec: int) -> bytes:
    name = _PYARROW_CODECS.get(codec)
    if name is None:
        raise ThriftError(f"is compressed with {_codec_name(codec)}, which cannot be read")
    try:
        unpacked: bytes = pa.Codec(name).decompress(data, decompressed_size=size, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ThriftError(f"cannot be decompressed: {error}") from error
    return unpacked


def _codec_name(codec: int) -> str:
    return _CODECS[codec] if 0 <= codec < len(_CODECS) else f"codec {codec}"


def _places(uri: str, *, chunk: _Chunk, read: _Read) -> Iterator[tuple[int, int]]:
    """Yields offset and size of each value of a chunk, (-1, 0) for null."""
    if chunk.codec:
        raise _not_plain(uri, chunk.place, f"compressed ({_codec_name(chunk.codec)})")
    for page in _pages(uri, chunk=chunk, read=read, whole=False):
        if page.encoding != _PLAIN:
            raise _not_plain(uri, page.place, "not PLAIN")
        with _damaged(uri, page.place):
            yield from _plain(page, max_level=chunk.max_level)


def _not_plain(uri: str, place: str, how: str) -> InputError:
    problem = (
        f"its images are {how}, so they have no place in the file; `shardbeam unpack` writes such "
        "files again"
    )
    return InputError(uri=uri, place=place, problem=problem)


def _texts(uri: str, *, chunk: _Chunk, read: _Read) -> Iterator[str | None]:
    """Yields the texts of a chunk, which may be compressed and dictionary encoded."""
    known: list[str | None] = []
    for page in _pages(uri, chunk=chunk, read=read, whole=True):
        with _damaged(uri, page.place):
            if page.encoding == -1:
                known = [_text(page, place) for place in _plain(page, max_level=0)]
            elif page.encoding == _PLAIN:
                for place in _plain(page, max_level=chunk.max_level):
                    yield _text(page, place)
            elif page.encoding in _DICTIONARIES:
                yield from _look_up(page, known, max_level=chunk.max_level)
            else:
                raise ThriftError(f"has encoding {page.encoding}, which is not read here")


def _text(page: _Page, place: tuple[int, int]) -> str | None:
    return None if place[0] < 0 else page.read(*place).decode()


def _look_up(page: _Page, known: Sequence[str | None], *, max_level: int) -> Iterator[str | None]:
    data = page.read(page.begin, page.end - page.begin)
    indices = _repeated(data[1:], width=data[0] if data else 0, count=page.count)
    for level, run in _levels(page, max_level=max_level):
        for _ in range(run):
            if level < max_level:
                yield None
                continue
            index = next(indices, len(known))
            if index >= len(known):
                raise ThriftError("has a value that is not in its dictionary")
            yield known[index]


def _repeated(data: bytes, *, width: int, count: int) -> Iterator[int]:
    for value, run in _runs(data, width=width, count=count):
        for _ in range(run):
            yield value


def _plain(page: _Page, *, max_level: int) -> Iterator[tuple[int, int]]:
    """Yields offset and size of each value of a PLAIN page, (-1, 0) for null."""
    position, end, read = page.begin, page.end, page.read
    for level, run in _levels(page, max_level=max_level):
        for _ in range(run):
            if level < max_level:
                yield -1, 0
                continue
            size = _length(read, position, end)
            yield position + 4, size
            position += 4 + size
    if position != end:
        raise ThriftError("is longer than its values")


def _length(read: _Read, position: int, end: int) -> int:
    """Reads the length of what follows at `position`, which must end before `end`."""
    data = read(position, 4) if position + 4 <= end else b""
    size = int.from_bytes(data, "little")
    if len(data) < 4 or size > end - position - 4:
        raise ThriftError("has a value that does not end within it")
    return size


def _levels(page: _Page, *, max_level: int) -> Iterator[tuple[int, int]]:
    if not max_level:
        yield 0, page.count
        return
    for level, run in _runs(page.levels, width=max_level.bit_length(), count=page.count):
        if level > max_level:
            raise ThriftError("has a level that its column does not have")
        yield level, run


def _runs(data: bytes, *, width: int, count: int) -> Iterator[tuple[int, int]]:
    """Yields values and how often they are repeated, from the RLE/bit-packed hybrid encoding."""
    if width > 32:
        raise ThriftError("has values of more than 32 bits")
    position = 0
    while count > 0:
        header, position = read_varint(data, position)
        # A group has 8 values of `width` bits; a repeated value has whole bytes.
        groups = header >> 1 if header & 1 else 0
        if not header & 1:
            value, position = _number(data, position, (width + 7) // 8)
            run = min(header >> 1, count)
            yield value, run
            count -= run
        for _ in range(min(groups, (count + 7) // 8)):
            bits, position = _number(data, position, width)
            run = min(8, count)
            for index in range(run):
                yield (bits >> (index * width)) & ((1 << width) - 1), 1
            count -= run


def _number(data: bytes, position: int, size: int) -> tuple[int, int]:
    if position + size > len(data):
        raise ShortError("ends within a number")
    return int.from_bytes(data[position : position + size], "little"), position + size


@contextlib.contextmanager
def _damaged(uri: str, place: str) -> Iterator[None]:
    """Adds file and place to what is wrong with bytes."""
    try:
        yield
    except (ThriftError, UnicodeDecodeError) as error:
        problem = f"is damaged: {error}; download the file again"
        raise DamagedError(uri=uri, place=place, problem=problem) from error


def stored_arrow_images(uri: str, *, storage: Storage, column: str) -> Iterator[StoredImage]:
    """Yields where the images of a column lie in an Arrow stream, one for each row, in order.

    Args:
        uri: A file `data-*.arrow` of `save_to_disk`, on this machine's disks.
        storage: Its storage.
        column: A column of images: a struct of `bytes` and `path`, or bytes.

    Raises:
        InputError: It is no such file, is damaged or compressed, or has no such column.
    """
    raise NotImplementedError
