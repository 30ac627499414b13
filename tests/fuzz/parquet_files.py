"""Parquet files with flipped bits: indexes, duplicates, `exclude` and `group_by`, shards, images.

pyarrow ends the process where it meets some of these, so `make test` runs them in another one.
"""

from __future__ import annotations

import functools
import io
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
from pyarrow import parquet

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.index import IndexRow, load_index, read_index
from shardbeam.transforms.duplicates.duplicates import SCHEMA, load_duplicates
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.formats.huggingface.pages import (
    StoredImage,
    read_image_column,
    stored_arrow_images,
    stored_images,
)
from shardbeam.transforms.formats.join.sources import (
    excluded_images,
    find_key_file,
    image_groups,
)
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.indexes import render_index

_ROWS = 40
# The last bytes of a Parquet file: the length of the footer, and `PAR1`.
_TAIL_BYTES = 8


def fuzz_parquet_index(rng: random.Random) -> str:
    """Flips bits of an index, which is refused as soon as a manifest lists it.

    Where none does (`shardbeam index`), damage may go unnoticed, but rows and errors are typed.
    """
    index = _index()
    damaged = _flip(index, rng)
    listed = describe_data("index/a.parquet", index)
    path = _write(listed.path, damaged)
    _expect_refusal(lambda: load_index(str(path), listed=listed), of=path)
    return _read(lambda: read_index(damaged, uri=str(path)).to_pylist())


def fuzz_parquet_duplicates(rng: random.Random) -> str:
    """Flips bits of a `duplicates.parquet`, which a manifest lists."""
    duplicates = _duplicates()
    listed = describe_data("duplicates.parquet", duplicates)
    path = _write(listed.path, _flip(duplicates, rng))
    columns = SCHEMA.names
    _expect_refusal(
        lambda: load_duplicates(str(path.parent), listed=listed, columns=columns), of=path
    )
    return _read(
        lambda: load_duplicates(str(path.parent), listed=None, columns=columns).to_pylist()
    )


def fuzz_parquet_key_file(rng: random.Random) -> str:
    """Flips bits of a list for `exclude` and `group_by`."""
    path = _write("keys.parquet", _flip(_duplicates(), rng))
    read = rng.choice([excluded_images, image_groups])
    return _read(lambda: read(find_key_file(str(path))))


def fuzz_parquet_shard(rng: random.Random) -> str:
    """Flips bits of a Parquet shard whose checksum nothing gives."""
    damaged = _flip(_shard(), rng)
    path = _write("a.parquet", damaged)
    file = StoredFile("a.parquet", str(path), len(damaged), "")

    def read() -> list[Example]:
        records = find_container("hf_parquet").read(file)
        return [Example.FromString(record) for _, record in records]

    return _read(read)


def fuzz_parquet_images(rng: random.Random) -> str:
    """Flips bits of a file whose images stay in it: each is where it was, or the file is refused.

    A footer may name another column then.
    """
    data = _images(rng.randrange(8))
    anywhere = rng.random() < 0.5
    damaged = _flip(data, rng, end=None if anywhere else _footer(data))
    expected = [(image.offset, image.size) for image in _find_images(_write("good", data))]
    path = _write("images.parquet", damaged)

    def read() -> None:
        read_image_column(str(path), storage=LocalStorage(), column="image")
        found = [(image.offset, image.size) for image in _find_images(path)]
        assert all(offset + size <= len(data) for offset, size in found)
        assert anywhere or found == expected

    return _read(read)


def fuzz_parquet_arrow_images(rng: random.Random) -> str:
    """Flips bits of an Arrow stream whose images stay in it."""
    buffer = io.BytesIO()
    table = parquet.read_table(io.BytesIO(_images(0)))
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table, max_chunksize=16)
    data = buffer.getvalue()
    path = _write("images.arrow", _flip(data, rng, end=len(data)))

    def read() -> None:
        found = stored_arrow_images(str(path), storage=LocalStorage(), column="image")
        assert all(image.offset + image.size <= len(data) for image in found)

    return _read(read)


def fuzz_parquet_page_checksums(rng: random.Random) -> str:
    """Flips a bit in the pages of a file with checksums: never is another value read."""
    table = parquet.read_table(io.BytesIO(_index()))
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, write_page_checksum=True, compression="none")
    data = buffer.getvalue()
    damaged = _flip(data, rng, end=_footer(data))

    def read() -> None:
        assert read_index(damaged, uri="x").to_pylist() == table.to_pylist()

    return _read(read)


def _read(read: Callable[[], object]) -> str:
    """Calls a function, and returns whether it raised an InputError, which must have one line."""
    error = _error_of(read)
    assert "\n" not in str(error or "")
    return "refused" if error else "read"


def _expect_refusal(read: Callable[[], object], *, of: Path) -> None:
    error = _error_of(read)
    assert isinstance(error, DamagedError), "a damaged file was believed"
    assert error.uri == str(of)
    assert "the manifest says" in error.problem
    assert "--repair CONFIG.yaml" in error.problem


def _error_of(read: Callable[[], object]) -> InputError | None:
    try:
        read()
    except InputError as error:
        return error
    return None


def _flip(data: bytes, rng: random.Random, *, end: int | None = None) -> bytes:
    """Flips one to three bits: in half of the cases in the footer, unless `end` is given."""
    damaged = bytearray(data)
    begin = _footer(data) if end is None and rng.random() < 0.5 else 0
    for bit in rng.sample(range(8 * begin, 8 * (end or len(data))), rng.choice([1, 1, 1, 2, 3])):
        damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def _footer(data: bytes) -> int:
    """Returns where a file's footer begins."""
    end = len(data) - _TAIL_BYTES
    return end - int.from_bytes(data[end : end + 4], "little")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="shardbeam-fuzz-")


def _write(name: str, data: bytes) -> Path:
    path = Path(_folder().name, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


@functools.cache
def _index() -> bytes:
    return render_index(
        [
            IndexRow(
                key=f"images/{number:04}.jpg",
                source="coco",
                split="train",
                shard=0,
                offset=number * 100,
                length=84,
                sha256=f"{number:064x}",
                width=64,
                height=48,
                format="jpeg",
                objects=number % 3,
                crc32c=google_crc32c.value(b"%d" % number),
                labels=f"{number:016x}",
                dhash=number << 40,
                classes_digest=f"{number % 3:016x}",
                classes=list(range(number % 3)),
                findings={} if number % 4 else {"huge_box": number, "thin_box": 2},
                map_classes=None if number % 2 else [7],
            )
            for number in range(_ROWS)
        ]
    )


@functools.cache
def _duplicates() -> bytes:
    values: dict[str, Any] = {"bool": True, "int32": 3, "string": "cat"}
    columns = {field.name: [values[str(field.type)]] * _ROWS for field in SCHEMA}
    columns["key"] = [f"{number:04}.jpg" for number in range(_ROWS)]
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns, schema=SCHEMA), buffer, compression="zstd")
    return buffer.getvalue()


def _find_images(path: Path) -> list[StoredImage]:
    return list(stored_images(str(path), storage=LocalStorage(), column="image"))


@functools.cache
def _images(variant: int) -> bytes:
    """Renders a file with images, without compression and dictionaries."""
    images = [
        None if variant & 4 and row % 5 == 0 else {"bytes": b"\xff\xd8" * row, "path": f"{row}.jpg"}
        for row in range(_ROWS)
    ]
    buffer = io.BytesIO()
    parquet.write_table(
        pa.table({"image": images, "label": range(_ROWS)}),
        buffer,
        compression="none",
        use_dictionary=["label"],
        data_page_version=["1.0", "2.0"][variant & 1],
        row_group_size=[None, 16][variant >> 1 & 1],
        data_page_size=200,
        write_batch_size=8,
    )
    return buffer.getvalue()


@functools.cache
def _shard() -> bytes:
    image = {"bytes": b"\xff\xd8\xff" * 20, "path": "a.jpg"}
    table = pa.table(
        {
            "image/encoded": [image] * _ROWS,
            "image/filename": [f"{number:04}.jpg" for number in range(_ROWS)],
            "image/width": [64] * _ROWS,
            "image/object/bbox/xmin": pa.array(
                [[0.25] * (number % 3) for number in range(_ROWS)], pa.list_(pa.float32())
            ),
            "image/object/class/text": [["cat", "dog"][: number % 3] for number in range(_ROWS)],
        }
    )
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd", row_group_size=16)
    return buffer.getvalue()
