"""Reads a table of class probabilities: a row for each image, and a column for each class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, parquet

from shardbeam.configs.problem import did_you_mean
from shardbeam.transforms.core.errors import InputError, unreadable
from shardbeam.transforms.core.text import cut, show_name
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.parquet import PARQUET_ERRORS

# The column with the image's key is the first of these that the table has.
_KEYS = ("key", "image", "image_id", "filename", "file_name", "path")
_ROUNDING = 1e-3
# A row of probabilities of one class each adds up to 1; half precision is worse than this.
_SUM_ROUNDING = 0.02
_BLOCK_BYTES = 8 << 20
_MOST_BYTES = 2 << 30
_BATCH_ROWS = 4096


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
        names = self._names()
        repeated = sorted({name for name in names if names.count(name) > 1})
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
        self.left_out = [name for name in names if name not in (*classes, self._key)]

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
        try:
            storage.find(self.uri)
            return storage.read_small(self.uri, max_bytes=_MOST_BYTES)
        except OSError as error:
            raise unreadable(self.uri, error) from error

    def _names(self) -> list[str]:
        with self._explain():
            if self._is_parquet:
                return list(parquet.read_schema(pa.BufferReader(self._data)).names)
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
            file = parquet.ParquetFile(pa.BufferReader(self._data), page_checksum_verification=True)
            kinds = self._kinds()
            schema = pa.schema([(name, kinds[name]) for name in columns])
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                yield batch.select(columns).cast(schema)

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except (*PARQUET_ERRORS, NotImplementedError) as error:
            what = "Parquet" if self._is_parquet else "CSV"
            raise InputError(
                uri=self.uri, problem=f"is no {what} table that can be read: {cut(str(error))}"
            ) from error
