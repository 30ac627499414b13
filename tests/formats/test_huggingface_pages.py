"""Where images lie in Parquet and Arrow files, compared with a search for their bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.huggingface import pages
from shardbeam.transforms.formats.huggingface.pages import (
    StoredImage,
    read_image_column,
    stored_arrow_images,
    stored_images,
)
from shardbeam.transforms.storage.local import LocalStorage

STORAGE = LocalStorage()
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

Image = dict[str, Any] | None


def make_images(number: int, *, nulls: bool = False, max_bytes: int = 400) -> list[Image]:
    """Makes rows of random images; with `nulls`, some without bytes, path, or both."""
    rng = random.Random(f"{number}/{nulls}")
    images: list[Image] = [
        {"bytes": rng.randbytes(rng.randrange(12, max_bytes)), "path": f"{row % 7}.jpg"}
        for row in range(number)
    ]
    for image in images[::3] if nulls else []:
        assert image is not None
        image[rng.choice(["bytes", "path"])] = None
    return [None if nulls and row % 11 == 5 else image for row, image in enumerate(images)]


def make_table(images: Sequence[Image], *, kind: pa.DataType = IMAGE) -> pa.Table:
    """Makes a table of images and other columns, of which some are lists."""
    rows = range(len(images))
    return pa.table(
        {
            "id": pa.array([row // 2 for row in rows]),
            "objects": pa.array([{"bbox": [[1.0, 2.0]] * (row % 3)} for row in rows]),
            "image": pa.array(images, kind),
            "label": pa.array(["cat", "dog", None][row % 3] for row in rows),
        }
    )


def search(data: bytes, images: Sequence[Image]) -> list[StoredImage]:
    """Finds images by their lengths and bytes, each of which is in a Parquet file once."""
    found = []
    for image in images:
        content, path = (image["bytes"], image["path"]) if image else (None, None)
        value = len(content or b"").to_bytes(4, "little") + (content or b"")
        offset = -1 if content is None else data.index(value) + 4
        assert content is None or data.find(value, offset) < 0
        found.append(StoredImage(offset, len(content or b""), path))
    return found


def check_arrow(path: Path, images: Sequence[Image]) -> None:
    """Checks that the images of an Arrow stream have the bytes where they are said to be."""
    data = path.read_bytes()
    found = list(stored_arrow_images(str(path), storage=STORAGE, column="image"))
    for image, stored in zip(images, found, strict=True):
        content = data[stored.offset :][: stored.size] if stored.offset >= 0 else None
        assert (content, stored.path) == (
            (image["bytes"], image["path"]) if image else (None, None)
        )


def read(path: Path) -> list[StoredImage]:
    return list(stored_images(str(path), storage=STORAGE, column="image"))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("written", ["one group", "groups", "pages", "paths as they are"])
def test_each_image_is_where_its_bytes_are(
    tmp_path: Path, version: str, nulls: bool, written: str
) -> None:
    images = make_images(1500, nulls=nulls)
    path = tmp_path / "a.parquet"
    parquet.write_table(
        make_table(images),
        path,
        data_page_version=version,
        row_group_size=700 if written == "groups" else None,
        data_page_size=3000 if written == "pages" else None,
        write_batch_size=10 if written == "pages" else None,
        compression={"image.bytes": "none", "image.path": "zstd"},
        use_dictionary=["id", "label"] + ["image.path"] * (written != "paths as they are"),
        write_statistics=written != "groups",
    )

    assert read_image_column(str(path), storage=STORAGE, column="image").why_not == ""
    assert read(path) == search(path.read_bytes(), images)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
@pytest.mark.parametrize("nullable", [False, True])
def test_bytes_may_be_of_each_type_and_required(
    tmp_path: Path, kind: pa.DataType, nullable: bool
) -> None:
    images = make_images(300)
    path = tmp_path / "a.parquet"
    struct = pa.struct([pa.field("bytes", kind, nullable), ("path", pa.large_string())])
    table = make_table(images, kind=struct)
    field = pa.field("image", struct, nullable)
    table = table.set_column(2, field, table["image"].cast(struct))
    parquet.write_table(table, path, compression="none", use_dictionary=False)

    assert read(path) == search(path.read_bytes(), images)


def test_a_column_of_bytes_has_no_paths(tmp_path: Path) -> None:
    images = [image and image["bytes"] for image in make_images(300, nulls=True)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"image": images}), path, compression="none", use_dictionary=False)

    expected = search(path.read_bytes(), [{"bytes": each, "path": None} for each in images])
    assert read(path) == expected


def test_no_rows_give_no_images(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(make_table([]), path, compression="none")

    assert read(path) == []


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"compression": "snappy", "use_dictionary": False}, "compressed (SNAPPY)"),
        ({"compression": "zstd"}, "compressed (ZSTD)"),
        ({"compression": "none"}, "dictionary encoded"),
        (
            {
                "compression": "none",
                "use_dictionary": False,
                "column_encoding": {"image.bytes": "DELTA_LENGTH_BYTE_ARRAY"},
            },
            "delta encoded",
        ),
    ],
)
def test_other_pages_are_refused_with_the_command_that_helps(
    tmp_path: Path, how: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(make_table(make_images(300)), path, **how)

    found = read_image_column(str(path), storage=STORAGE, column="image")
    assert found == (found.rows, reason)
    with pytest.raises(InputError, match=r"row group 0.*shardbeam unpack"):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no Parquet file"),
        (b"PAR1" + bytes(5000), "no Parquet file, or only the beginning of one"),
        (b"PAR1" * 5, "is damaged"),
        (b"PAR1" + b"\xff" * 40 + (40).to_bytes(4, "little") + b"PAR1", "is damaged"),
        (b"PAR1" + b"\xff\xff\xff\x7fPAR1", "more than the file"),
        (b"PAR1" + b"\x00" * 8 + b"PARE", "encrypted"),
        (b"\x89PNG" * 20, "no Parquet file"),
    ],
)
def test_what_is_no_parquet_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)

    for look in (read, lambda path: read_image_column(str(path), storage=STORAGE, column="image")):
        with pytest.raises(InputError, match=message):
            look(path)


@pytest.mark.parametrize("column", ["id", "objects", "images", "image.bytes"])
def test_a_column_without_images_is_refused(tmp_path: Path, column: str) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(make_table(make_images(3)), path, compression="none")

    with pytest.raises(InputError, match=r"no column|no bytes"):
        list(stored_images(str(path), storage=STORAGE, column=column))


def test_a_list_of_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"image": pa.array([[b"one", b"two"]])})
    parquet.write_table(table, path, compression="none", use_dictionary=False)

    with pytest.raises(InputError, match="no column 'image' of images"):
        read(path)


def test_remote_files_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a bucket: no local file, and few requests."""
    images = make_images(900, max_bytes=5000)
    path = tmp_path / "a.parquet"
    parquet.write_table(
        make_table(images), path, compression="none", use_dictionary=["label", "image.path"]
    )
    requests = []

    def count(self: LocalStorage, uri: str, **range_: Any) -> bytes:  # noqa: ANN401
        requests.append(range_)
        return real(self, uri, **range_)

    real = LocalStorage.read
    monkeypatch.setattr(LocalStorage, "read", count)
    monkeypatch.setattr(LocalStorage, "open_local", lambda *_: None)
    monkeypatch.setattr(LocalStorage, "is_remote", True)

    assert read(path) == search(path.read_bytes(), images)
    assert len(requests) < 12
    with pytest.raises(InputError, match="copy the folder"):
        list(stored_arrow_images(str(path), storage=STORAGE, column="image"))


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("rows", [1, 7, 2500])
def test_images_of_arrow_streams_are_where_their_bytes_are(
    tmp_path: Path, nulls: bool, kind: pa.DataType, rows: int
) -> None:
    images = make_images(50, nulls=nulls)
    path = tmp_path / "data-00000-of-00001.arrow"
    struct = pa.struct([("bytes", kind), ("path", pa.string())])
    write_stream(path, make_table(images, kind=struct), rows=rows)

    check_arrow(path, images)


def test_sliced_arrow_arrays_are_found(tmp_path: Path) -> None:
    images = make_images(50, nulls=True)
    path = tmp_path / "a.arrow"
    write_stream(path, make_table(images).slice(13, 20), rows=6)

    check_arrow(path, images[13:33])


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_arrow_streams_are_refused(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "a.arrow"
    images: list[Image] = [{"bytes": bytes(5000), "path": "a"}] * 30
    write_stream(path, make_table(images), rows=10, codec=codec)

    with pytest.raises(InputError, match=r"record batch 0.*compressed"):
        list(stored_arrow_images(str(path), storage=STORAGE, column="image"))


def write_stream(path: Path, table: pa.Table, *, rows: int, codec: str | None = None) -> None:
    """Writes an Arrow stream with batches of some rows."""
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(str(path), table.schema, options=options) as stream:
        stream.write_table(table, max_chunksize=rows)


@pytest.mark.parametrize(
    ("data", "width", "count", "values"),
    [
        (b"\x0a\x01", 1, 5, [1] * 5),
        (b"\x03\xaa", 1, 8, [0, 1] * 4),
        (b"\x03\xaa", 1, 3, [0, 1, 0]),
        (b"\x03\xe4\xe4\x04\x02", 2, 10, [0, 1, 2, 3] * 2 + [2, 2]),
        (b"\x00\x01\x04\x00", 1, 2, [0, 0]),
        (b"\xfe\xff\xff\xff\x0f\x01", 1, 3, [1] * 3),
        (b"", 1, 0, []),
    ],
)
def test_runs_are_repeated_values_and_groups_of_eight(
    data: bytes, width: int, count: int, values: list[int]
) -> None:
    runs = pages._runs(data, width=width, count=count)
    assert [*itertools.chain.from_iterable([value] * run for value, run in runs)] == values


# Thrift's compact protocol, as far as Parquet files need it. A field is (number, type, content).
Field = tuple[int, int, bytes]


def varint(number: int) -> bytes:
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def integer(field: int, number: int) -> Field:
    return field, 5, varint(number * 2 if number >= 0 else -number * 2 - 1)


def long(field: int, number: int) -> Field:
    return field, 6, integer(field, number)[2]


def text(field: int, content: bytes) -> Field:
    return field, 8, varint(len(content)) + content


def nested(field: int, content: bytes) -> Field:
    return field, 12, content


def listed(field: int, kind: int, items: Sequence[bytes], *, size: int | None = None) -> Field:
    header = bytes([0xF0 | kind]) + varint(len(items) if size is None else size)
    return field, 9, header + b"".join(items)


def struct(*fields: Field) -> bytes:
    numbers = [0, *(number for number, _, _ in fields)]
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    parts = (
        bytes([step << 4 | kind]) + data
        for step, (_, kind, data) in zip(steps, fields, strict=True)
    )
    return b"".join(parts) + b"\0"


def parquet_file(pages: bytes, **numbers: int) -> bytes:
    """Renders a file with a column of bytes; `numbers` replaces what its footer says of it."""
    of = {"codec": 0, "values": 2, "size": len(pages), "begin": 4, "rows": 2, "groups": 1} | numbers
    column = struct(
        *(integer(1, 6), listed(2, 5, [b"\0"]), listed(3, 8, [b"\5image"])),
        *(integer(4, of["codec"]), long(5, of["values"]), long(6, len(pages))),
        *(long(7, of["size"]), long(9, of["begin"])),
    )
    group = struct(
        listed(1, 12, [struct(long(2, 4), nested(3, column))]),
        *(long(2, len(pages)), long(3, of["rows"])),
    )
    leaves = [struct(text(4, b"root"), integer(5, 1))]
    leaves.append(struct(integer(1, 6), integer(3, 1), text(4, b"image")))
    groups = listed(4, 12, [group], size=of["groups"])
    return with_footer(pages, struct(integer(1, 1), listed(2, 12, leaves), long(3, 2), groups))


def with_footer(pages: bytes, footer: bytes) -> bytes:
    return b"PAR1" + pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def page(levels: bytes, values: bytes = b"", **numbers: int) -> bytes:
    """Renders a data page; its levels and its values have their lengths before them."""
    body = len(levels).to_bytes(4, "little") + levels + values
    of = {"count": 2, "size": len(body), "encoding": 0, "coding": 3} | numbers
    details = [integer(1, of["count"]), integer(2, of["encoding"]), integer(3, of["coding"])]
    header = struct(
        *(integer(1, 0), integer(2, len(body)), integer(3, of["size"])),
        nested(5, struct(*details, integer(4, 3))),
    )
    return header + body


TWO = b"\x04\x01"  # A run of two values that are there.
A, B = b"\1\0\0\0a", b"\1\0\0\0b"
HOSTILE = {
    "a value beyond its page": parquet_file(page(TWO, b"\xff\xff\xff\xff")),
    "fewer values": parquet_file(page(TWO, A)),
    "more values": parquet_file(page(TWO, A + B + A)),
    "a level that is not there": parquet_file(page(b"\x04\x02", A + B)),
    "levels that never end": parquet_file(page(b"\x80" * 11, A + B)),
    "runs of nothing": parquet_file(page(b"\0\1" * 2000, A + B)),
    "too many levels": parquet_file(page(TWO * 9000, A + B)),
    "old levels": parquet_file(page(TWO, A + B, coding=4)),
    "a negative count": parquet_file(page(TWO, A + B, count=-2)),
    "a large count": parquet_file(page(TWO, A + B, count=1 << 31)),
    "a negative page": parquet_file(page(TWO, A + B, size=-9)),
    "a long page": parquet_file(page(TWO, A + B, size=1 << 31)),
    "empty pages": parquet_file(page(b"", count=0) * 500),
    "a column beyond the file": parquet_file(page(TWO, A + B), begin=1 << 40),
    "a column before the file": parquet_file(page(TWO, A + B), begin=-4),
    "a long column": parquet_file(page(TWO, A + B), size=1 << 60),
    "a negative column": parquet_file(page(TWO, A + B), size=-1),
    "many nulls": parquet_file(
        page(b"\xfe\xff\xff\7\0", count=1 << 23), values=1 << 23, rows=1 << 23
    ),
    "a negative number of rows": parquet_file(page(TWO, A + B), values=-2, rows=-2),
    "another number of values": parquet_file(page(TWO, A + B), values=3),
    "an unknown codec": parquet_file(page(TWO, A + B), codec=99),
    "a list that lies": parquet_file(page(TWO, A + B), groups=1 << 60),
    "nested structs": with_footer(b"", b"\x1c" * 100_000),
    "nested lists": with_footer(b"", b"\x19" * 100_000),
    "nested columns": with_footer(
        b"", struct(listed(2, 12, [struct(integer(3, 1), text(4, b"a"), integer(5, 1))] * 999))
    ),
    "a name that is no text": parquet_file(page(TWO, A + B)).replace(b"image", b"imag\xff"),
    "a field of another type": with_footer(b"", struct(integer(2, 1))),
}


def test_the_hostile_files_are_right_but_for_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet_file(page(TWO, A + B)))
    assert [path.read_bytes()[image.offset :][: image.size] for image in read(path)] == [b"a", b"b"]


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(HOSTILE[kind])

    with pytest.raises(InputError, match=r"download the file again|shardbeam unpack") as raised:
        read(path)
    assert raised.value.uri == str(path)
    assert raised.value.place.startswith(("footer", "row group 0"))


def test_images_of_real_files_are_where_their_bytes_are(shared_data: Path) -> None:
    root = shared_data / "huggingface"
    compared = 0
    for path in sorted([*root.glob("**/*.parquet"), *root.glob("**/*.arrow")]):
        if path.suffix == ".arrow":
            images = pa.ipc.open_stream(path.read_bytes()).read_all()["image"].to_pylist()
            check_arrow(path, images)
        elif read_image_column(str(path), storage=STORAGE, column="image").why_not:
            assert path.parent.name == "detection_snappy"
            continue
        else:
            images = parquet.read_table(path)["image"].to_pylist()
            assert read(path) == search(path.read_bytes(), images)
        compared += len(images)
    assert compared >= 9
