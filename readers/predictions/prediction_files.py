"""Reads the predictions of a model: detections, or a table of class probabilities.

Detections are in COCO's format for results, a JSON list with one object for each detection
(https://cocodataset.org/#format-results). The table, CSV or Parquet, has a row for each image and a
column for each class.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, parquet

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.problem import did_you_mean
from shardbeam.transforms.core.errors import DECODING_ERRORS, InputError, reading, unreadable
from shardbeam.transforms.core.text import cut, show_name
from shardbeam.transforms.formats.annotation_file import foreign_content, repeated_key_within
from shardbeam.transforms.storage.base import ChangedError
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.parquet import PARQUET_ERRORS, ParquetRows, raise_shortage

# Weaker detections hardly change a margin, and are most of a file.
LEAST_SCORE = 0.05
_SCORE_ROUNDING = 1e-6
# The file is read in pieces of this length; a longer result is an error.
PIECE_BYTES = 8 << 20
# Commas that may stand between two results are tried from the last one of a piece.
_TRIES = 20
_BETWEEN = re.compile(rb"\}[ \t\r\n]*,")
_INDEX = re.compile(r"\$\[(\d+)\]")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_EXPECTED = "expected COCO results: [{image_id, category_id, bbox: [x, y, width, height], score}]"
# No picture is larger.
_FAR_PX = 1e9
_MOST_INT = (1 << 63) - 1

# The column with the key of a table's images is the first of these that it has.
_KEYS = ("key", "image", "image_id", "filename", "file_name", "path")
_ROUNDING = 1e-3
# A row of probabilities of one class each adds up to 1; half precision is worse than this.
_SUM_ROUNDING = 0.02
_BLOCK_BYTES = 8 << 20
_MOST_BYTES = 2 << 30
_BATCH_ROWS = 4096

_ROW = np.dtype(
    [("image", np.int32), ("class", np.int32), ("box", np.float32, 4), ("score", np.float32)]
)
# Of `_ROW`.
Rows: TypeAlias = npt.NDArray[np.void]


class _Result(msgspec.Struct, frozen=True, gc=False):
    image_id: int | str | float
    bbox: tuple[float, float, float, float]
    score: float
    category_id: int | float | None = None
    category: str | None = None


class Detections(NamedTuple):
    """The detections of a model, without those that cannot be used.

    Attributes:
        ids: Names of images, each once.
        categories: Ids or names of classes, each once.
        rows: The detections: image and class are indexes of `ids` and `categories`, the box is that
            of the file (left, top, width and height in pixels), and the score is from 0 to 1.
        left_out: `{why: how many}` of the others.
    """

    ids: list[str]
    categories: list[int | str]
    rows: Rows
    left_out: Counter[str]


_decoder = JsonDecoder(list[_Result])


def read_detections(uri: str) -> Detections:
    """Reads detections, 8 MB of the file at a time; each takes 28 bytes of memory.

    Raises:
        InputError: The file cannot be read, is no list of results, or a score is not from 0 to 1.
    """
    ids: dict[str, int] = {}
    categories: dict[int | str, int] = {}
    left_out: Counter[str] = Counter()
    parts: list[Rows] = []
    number = 0
    for results in _read_pieces(uri):
        rows = np.empty(len(results), _ROW)
        rows["image"] = [ids.setdefault(str(_whole(each.image_id)), len(ids)) for each in results]
        rows["class"] = [
            categories.setdefault(_category(each, number + n, uri=uri), len(categories))
            for n, each in enumerate(results)
        ]
        boxes = np.array([each.bbox for each in results], np.float64).reshape(-1, 4)
        scores = np.array([each.score for each in results])
        bad = np.flatnonzero((scores < -_SCORE_ROUNDING) | (scores > 1 + _SCORE_ROUNDING))
        if bad.size:
            raise InputError(
                uri=uri,
                place=f"result {number + bad[0] + 1:,}",
                problem=f"its score is {scores[bad[0]]:g}; expected a probability from 0 to 1",
            )
        is_weak, is_flat = scores < LEAST_SCORE, ~(boxes[:, 2:] > 0).all(axis=1)
        left_out[f"with a score below {LEAST_SCORE}"] += int(is_weak.sum())
        left_out["with a box without area"] += int((is_flat & ~is_weak).sum())
        rows["box"] = np.clip(boxes, -_FAR_PX, _FAR_PX)
        rows["score"] = np.clip(scores, 0, 1)
        parts.append(rows[~(is_weak | is_flat)])
        number += len(results)
    if not number:
        raise InputError(uri=uri, problem="holds no predictions")
    return Detections(list(ids), list(categories), np.concatenate(parts), left_out)


def _whole(number: int | str | float) -> int | str:
    """Returns an id as it was meant: pandas writes the ids of a column with gaps as 1.0."""
    if isinstance(number, float):
        return int(number) if number.is_integer() and abs(number) < _MOST_INT else str(number)
    return number


def _category(result: _Result, number: int, *, uri: str) -> int | str:
    found = result.category_id if result.category is None else result.category
    if found is None:
        problem = "has neither a category_id nor a category"
        raise InputError(uri=uri, place=f"result {number + 1:,}", problem=problem)
    return _whole(found)


def _read_pieces(uri: str) -> Iterator[list[_Result]]:
    """Yields the results of a file, some at a time."""
    # `text` begins with a bracket, which stands at the byte `begin`, before the result `number`.
    text, begin, number = b"", 0, 0
    for piece in read_file(uri):
        if not text:
            _check_content(piece, uri=uri)
            piece = piece.removeprefix(b"\xef\xbb\xbf")
        text += piece
        results, comma = _decode_start(text)
        if results:
            _check_keys(text[: comma + 1], results, begin=begin, uri=uri)
            yield results
            text, begin, number = b"[" + text[comma + 1 :], begin + comma, number + len(results)
        elif len(text) > 2 * PIECE_BYTES:
            break
    if not text.strip():
        raise InputError(uri=uri, problem=f"is empty; {_EXPECTED}")
    try:
        results = _decoder.decode(text)
        _check_keys(text, results, begin=begin, uri=uri)
        yield results
    except msgspec.ValidationError as error:
        words = str(error)
        if found := _INDEX.search(words):
            words = words.replace(found[0], f"result {number + int(found[1]) + 1:,}")
        raise InputError(uri=uri, problem=f"{words}; {_EXPECTED}") from error
    except DECODING_ERRORS as error:
        words, found = str(error), _BYTE.search(str(error))
        place = f"byte {begin + int(found[1]):,}" if found else ""
        words = _BYTE.sub("", words).strip()
        raise InputError(
            uri=uri,
            place=place,
            problem=f"{words}; {_EXPECTED}. JSON has no NaN and no Infinity",
        ) from error


def _check_keys(text: bytes, results: Sequence[_Result], *, begin: int, uri: str) -> None:
    """Refuses a result with a key twice, of which the decoder would take the last one.

    Args:
        text: The results, after a bracket.
        results: The same.
        begin: Where the bracket stands in the file.
        uri: The file, for errors.
    """
    # Counting is a hundred times as quick as looking at each result.
    if all(text.count(b'"%b"' % key.encode()) <= len(results) for key in _Result.__struct_fields__):
        return
    body = text.rstrip().removesuffix(b",")
    key = repeated_key_within(body if body.endswith(b"]") else body + b"]")
    if key is not None:
        raise InputError(
            uri=uri,
            place=f"after byte {begin:,}",
            problem=f"the key {key!r} is given twice in one result",
        )


def _decode_start(text: bytes) -> tuple[list[_Result], int]:
    """Decodes the results at the beginning of a text that goes on, up to a comma, which it returns.

    A comma after a brace may also stand within a result, or within a string: then what is before it
    is no list of results, and an earlier comma is tried.
    """
    commas = [found.end() - 1 for found in _BETWEEN.finditer(text)]
    for comma in commas[: -_TRIES - 1 : -1]:
        try:
            return _decoder.decode(b"%b]" % text[:comma]), comma
        except msgspec.ValidationError:
            break
        except DECODING_ERRORS:
            continue
    return [], 0


def _check_content(start: bytes, *, uri: str) -> None:
    """Refuses a file that begins like gzip, a zip, UTF-16 or other content that is no UTF-8 text.

    Raises:
        InputError: It does; the message says what it is, and what to do.
    """
    if problem := foreign_content(start):
        raise InputError(uri=uri, problem=problem)


def read_file(uri: str) -> Iterator[bytes]:
    """Yields the bytes of a file, 8 MB at a time.

    Raises:
        InputError: It is not there, cannot be read, or has changed meanwhile.
    """
    storage = storage_for(uri)
    try:
        file = storage.find(uri)
        for offset in range(0, file.size_bytes, PIECE_BYTES):
            yield storage.read(uri, offset=offset, size_bytes=PIECE_BYTES, version=file.version)
    except ChangedError as error:
        raise InputError(uri=uri, problem="has changed while it was read") from error
    except OSError as error:
        raise unreadable(uri, error) from error


class ClassTable:
    """A table of class probabilities.

    Args:
        uri: A CSV or Parquet file.
        classes: The dataset's classes, which must have a column each.

    Raises:
        InputError: It cannot be read, or lacks a column.
    """

    def __init__(self, uri: str, *, classes: Sequence[str]) -> None:
        self.uri = uri
        self._classes = classes
        self._data = self._read()
        self._is_parquet = uri.lower().endswith(".parquet")
        self._key = ""
        columns = self._names()
        names = dict.fromkeys(columns)
        repeated = sorted(name for name, count in Counter(columns).items() if count > 1)
        if repeated:
            raise InputError(uri=uri, problem=f"has the column {show_name(repeated[0])} twice")
        keys = [name for name in _KEYS if name in names]
        if not keys:
            raise InputError(
                uri=uri,
                problem=f"has no column with the keys of images: expected {', '.join(_KEYS)}, and "
                "a column for each class",
            )
        self._key = keys[0]
        missing = [name for name in classes if name not in names or name == self._key]
        if missing:
            raise InputError(
                uri=uri,
                problem=f"has no column for the class {show_name(missing[0])}"
                f"{did_you_mean(missing[0], names)}; {len(missing):,} of {len(classes):,} classes "
                "have none. The model must know every class of the dataset",
            )
        # Other columns, such as a fold, are not read.
        read = {*classes, self._key}
        self.left_out = [name for name in names if name not in read]

    def keys(self) -> list[str]:
        """Returns the keys in all rows.

        Raises:
            InputError: A key is missing or is in two rows, or the file is damaged.
        """
        keys: dict[str, None] = {}
        for batch in self._batches([self._key]):
            for key in batch.column(0).to_pylist():
                if not key or key in keys:
                    raise InputError(
                        uri=self.uri,
                        place=f"row {len(keys) + 1:,}",
                        problem=f"the key {show_name(key)} is in an earlier row, too"
                        if key
                        else f"has no key in the column {show_name(self._key)}",
                    )
                keys[key] = None
        if not keys:
            raise InputError(uri=self.uri, problem="holds no predictions")
        return list(keys)

    def probabilities(self, *, one_class: bool) -> Iterator[npt.NDArray[np.float64]]:
        """Yields the probabilities of some rows at a time, with a column for each class.

        Args:
            one_class: Whether each image has one class, so that a row adds up to 1.

        Raises:
            InputError: A value is no probability, or the file is damaged.
        """
        row = 1
        for batch in self._batches(self._classes):
            values = np.stack(
                [batch.column(name).to_numpy(zero_copy_only=False) for name in self._classes], 1
            )
            # This also finds NaN, which fails every comparison.
            bad = np.argwhere(~((values >= -_ROUNDING) & (values <= 1 + _ROUNDING)))
            if bad.size:
                at, of = bad[0]
                raise InputError(
                    uri=self.uri,
                    place=f"row {row + at:,}, column {show_name(self._classes[of])}",
                    problem=f"expected a probability from 0 to 1, got {values[at, of]:g}; are "
                    "these logits? Apply softmax (or sigmoid, where images have several classes)",
                )
            sums = values.sum(axis=1)
            odd = np.flatnonzero(abs(sums - 1) > _SUM_ROUNDING)
            if one_class and odd.size:
                raise InputError(
                    uri=self.uri,
                    place=f"row {row + odd[0]:,}",
                    problem=f"its probabilities add up to {sums[odd[0]]:.3g}; expected 1, because "
                    "each image has one class: apply softmax",
                )
            yield values
            row += len(values)

    def _read(self) -> bytes:
        storage = storage_for(self.uri)
        with reading(self.uri):
            storage.find(self.uri)
            return storage.read_small(self.uri, max_bytes=_MOST_BYTES)

    def _names(self) -> list[str]:
        with self._explain():
            if self._is_parquet:
                return list(parquet.read_schema(pa.BufferReader(self._data)).names)
            # A table may begin with a class named `<none>`: what has a key is a table.
            header = self._data[:_BLOCK_BYTES].partition(b"\n")[0].split(b",")
            if {cell.strip(b'" \r').decode(errors="replace") for cell in header}.isdisjoint(_KEYS):
                _check_content(self._data, uri=self.uri)
            return list(self._open_csv(None).schema.names)

    def _open_csv(self, columns: Sequence[str] | None) -> csv.CSVStreamingReader:
        return csv.open_csv(
            pa.BufferReader(self._data),
            read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            convert_options=csv.ConvertOptions(
                include_columns=columns,
                column_types=self._kinds(),
                strings_can_be_null=False,
            ),
        )

    def _kinds(self) -> dict[str, pa.DataType]:
        return {name: pa.float64() for name in self._classes} | {self._key: pa.string()}

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._explain():
            if not self._is_parquet:
                yield from self._open_csv(columns)
                return
            file = ParquetRows(pa.BufferReader(self._data), uri=self.uri)
            kinds = self._kinds()
            schema = pa.schema([(name, kinds[name]) for name in columns])
            for group in range(len(file.group_rows)):
                for batch in file.read_group(group, columns=columns, batch_rows=_BATCH_ROWS):
                    yield batch.select(columns).cast(schema)

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except (*PARQUET_ERRORS, NotImplementedError) as error:
            raise_shortage(error, uri=self.uri, most_bytes=_MOST_BYTES)
            what = "Parquet" if self._is_parquet else "CSV"
            raise InputError(
                uri=self.uri, problem=f"is no {what} table that can be read: {cut(str(error))}"
            ) from error
