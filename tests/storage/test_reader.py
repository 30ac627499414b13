from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.find import StorageReader
from tests.support.archive_files import write_zip


@given(
    data=st.binary(max_size=300),
    block_bytes=st.integers(1, 64),
    reads=st.lists(st.tuples(st.integers(0, 320), st.integers(0, 100)), max_size=20),
)
def test_it_reads_as_a_file_does(
    data: bytes,
    block_bytes: int,
    reads: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("reader") / "file"
    path.write_bytes(b"before" + data + b"behind")
    version = str(path.stat().st_mtime_ns)
    reader = StorageReader(
        ImageRef(str(path), len(data), version, offset=6, whole=False), block_bytes=block_bytes
    )
    plain = io.BytesIO(data)

    for offset, size_bytes in reads:
        assert reader.read_at(offset, size_bytes) == data[offset : offset + size_bytes]
        assert reader.seek(offset) == plain.seek(offset)
        assert reader.read(size_bytes) == plain.read(size_bytes)
        assert reader.tell() == plain.tell()
    assert reader.read() == plain.read()
    assert reader.seek(-len(data), os.SEEK_END) == plain.seek(-len(data), os.SEEK_END)
    assert reader.read() == data
    with pytest.raises(OSError, match="cannot seek to -1"):
        reader.seek(-1)


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    reader = StorageReader(ImageRef(str(path), 7, str(path.stat().st_mtime_ns)), block_bytes=1)
    assert reader.read_at(0, 1) == b"c"
    os.utime(path, ns=(1, 1))

    with pytest.raises(InputError, match="changed while it was read"):
        reader.read_at(3, 1)
    path.unlink()
    with pytest.raises(InputError, match="changed while it was read"):
        reader.read_at(3, 1)


def test_it_reads_no_zip_members(tmp_path: Path) -> None:
    ((_, file),) = list_root(str(write_zip(tmp_path / "a.zip", {"a.jpg": b"1"})))

    with pytest.raises(ValueError, match="read_bytes"):
        StorageReader(file)
