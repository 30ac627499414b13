"""`shardbeam unpack`: compressed Parquet files become ones whose images have a place."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.formats.huggingface.pages import read_image_column, stored_images
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.dataset import Run, run

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
METADATA = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})}


def make_table(rows: int) -> pa.Table:
    images: list[dict[str, Any] | None] = [
        {"bytes": bytes([row % 250]) * (row % 90), "path": f"{row}.jpg"} for row in range(rows)
    ]
    images[3:5] = [{"bytes": None, "path": "beside.jpg"}, None]
    columns = {
        "image": pa.array(images, IMAGE),
        "mask": pa.array([b"mask" * (row % 3) for row in range(rows)], pa.large_binary()),
        "label": pa.array([row % 3 for row in range(rows)], pa.int8()),
        "objects": pa.array([{"bbox": [[1.0, row]] * (row % 3)} for row in range(rows)]),
        "text": pa.array(["a", None][row % 2] for row in range(rows)),
    }
    return pa.table(columns).replace_schema_metadata(METADATA)


def write_folder(folder: Path) -> Path:
    """Writes a folder as from the Hub: two files are compressed, one is not."""
    (folder / "data").mkdir(parents=True)
    (folder / ".cache").mkdir()
    parquet.write_table(make_table(300), folder / "data/train-00000.parquet", row_group_size=100)
    parquet.write_table(make_table(70), folder / "data/test-00000.parquet", compression="none")
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    parquet.write_table(make_table(9), folder / "plain.parquet", **plain)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "dataset_infos.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    (folder / ".cache/a.parquet").write_bytes(b"none")
    return folder


def unpack_to(source: Path, output: Path) -> Run:
    return run("unpack", str(source), "--to", str(output))


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_values_stay_and_images_get_a_place(tmp_path: Path) -> None:
    source, output = write_folder(tmp_path / "hub"), tmp_path / "plain"

    done = unpack_to(source, output)
    assert done.exit_code == 0, done.stderr
    assert "writing 5 files, at least 0.0 MB; the old ones stay, so both need room\n" in done.stdout
    assert "data/train-00000.parquet: 300 rows\n" in done.stdout
    assert "plain.parquet: copied\n" in done.stdout

    kept = {"README.md", "dataset_infos.json", "plain.parquet", ".unpacked-by-shardbeam"}
    assert files_of(output) == kept | {"data/train-00000.parquet", "data/test-00000.parquet"}
    for name in ("README.md", "dataset_infos.json", "plain.parquet"):
        assert (output / name).read_bytes() == (source / name).read_bytes()
    for name in ("data/train-00000.parquet", "data/test-00000.parquet"):
        old, new = (parquet.read_table(folder / name) for folder in (source, output))
        assert new.equals(old, check_metadata=True)
        for column in ("image", "mask"):
            path, storage = str(output / name), LocalStorage()
            assert read_image_column(str(source / name), storage=storage, column=column).why_not
            assert not read_image_column(path, storage=storage, column=column).why_not
            values = new[column].to_pylist()
            data = Path(path).read_bytes()
            found = stored_images(path, storage=storage, column=column)
            for value, image in zip(values, found, strict=True):
                content = value["bytes"] if isinstance(value, dict) else value
                there = data[image.offset :][: image.size] if image.offset >= 0 else None
                assert there == content


def test_a_footer_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path, output = tmp_path / "a.parquet", tmp_path / "plain"
    parquet.write_table(make_table(300), path)
    data = path.read_bytes()
    # The footer's number of rows, zigzag and as a varint, and the list of row groups after it.
    assert data.count(b"\x16\xd8\x04\x19") == 1
    path.write_bytes(data.replace(b"\x16\xd8\x04\x19", b"\x16\xd6\x04\x19"))

    done = unpack_to(path, output)
    assert done.exit_code == 1
    assert "footer: is damaged: says that it has 299 rows, and its row groups have 300" in (
        done.stderr
    )
    assert not output.exists()


def test_a_pipe_in_the_output_is_not_waited_for(tmp_path: Path) -> None:
    source, output = write_folder(tmp_path / "hub"), tmp_path / "plain"
    output.mkdir()
    os.mkfifo(output / ".unpacked-by-shardbeam")
    assert "a named pipe; only regular files are read" in unpack_to(source, output).stderr


def test_an_archive_is_unpacked_by_other_tools_first(tmp_path: Path) -> None:
    write_folder(tmp_path / "hub")
    archive = shutil.make_archive(str(tmp_path / "hub"), "zip", tmp_path / "hub")
    for source in (archive, f"{archive}/data", f"{archive}/data/train-00000.parquet"):
        refused = unpack_to(Path(source), tmp_path / "plain")
        assert refused.exit_code == 1
        assert refused.stderr == (
            f"shardbeam: error: {source}: is an archive, or lies in one; unpack that first\n"
        )


def test_row_groups_are_neither_small_nor_long(tmp_path: Path) -> None:
    """A file of many small groups has a long footer; a group is in memory while it is written."""
    path = tmp_path / "a.parquet"
    parquet.write_table(make_table(9_000), path, row_group_size=100)

    assert unpack_to(path, tmp_path / "small").exit_code == 0
    new = parquet.ParquetFile(tmp_path / "small/a.parquet")
    assert [new.metadata.row_group(it).num_rows for it in range(3)] == [4096, 4096, 808]

    table = pa.table({"image": [os.urandom(1 << 20) for _ in range(80)]})
    parquet.write_table(table, path)
    assert unpack_to(path, tmp_path / "large").exit_code == 0
    new = parquet.ParquetFile(tmp_path / "large/a.parquet")
    assert new.read().equals(table)
    assert [new.metadata.row_group(it).num_rows for it in range(2)] == [64, 16]


def test_one_file_is_unpacked_into_a_folder(tmp_path: Path) -> None:
    source, output = write_folder(tmp_path / "hub"), tmp_path / "plain"

    assert unpack_to(source / "data/train-00000.parquet", output).exit_code == 0
    assert files_of(output) == {"train-00000.parquet", ".unpacked-by-shardbeam"}


def test_only_missing_and_changed_files_are_written_again(tmp_path: Path) -> None:
    source, output = write_folder(tmp_path / "hub"), tmp_path / "plain"
    assert unpack_to(source, output).exit_code == 0
    before = {name: os.stat(output / name).st_ino for name in files_of(output)}

    (output / "data/test-00000.parquet").unlink()
    parquet.write_table(make_table(80), source / "data/train-00000.parquet")
    done = unpack_to(source, output)
    assert done.exit_code == 0, done.stderr
    assert "writing 2 files" in done.stdout
    after = {name: os.stat(output / name).st_ino for name in files_of(output)}
    assert before.keys() == after.keys()
    assert parquet.read_metadata(output / "data/train-00000.parquet").num_rows == 80
    assert {name for name in before if before[name] != after[name]} >= {"data/train-00000.parquet"}

    assert "writing" not in unpack_to(source, output).stdout


@pytest.mark.parametrize("kind", ["files", "another source", "file", "inside", "above", "itself"])
def test_an_output_with_other_files_is_refused(tmp_path: Path, kind: str) -> None:
    source, output = write_folder(tmp_path / "a" / "hub"), tmp_path / "plain"
    if kind == "files":
        output.mkdir()
        (output / "mine.txt").write_text("mine")
    elif kind == "another source":
        assert unpack_to(source / "data", output).exit_code == 0
    elif kind == "file":
        output.write_text("mine")
    else:
        output = {"inside": source / "new", "above": tmp_path / "a", "itself": source}[kind]
    before = files_of(tmp_path)

    refused = unpack_to(source, output)
    assert refused.exit_code == 2
    assert str(output) in refused.stderr
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "nothing to unpack; build it as it is"),
        (b"", "not a Parquet file"),
        (b"PAR1" * 9, "not a Parquet file, or a damaged one"),
    ],
)
def test_what_cannot_be_unpacked_is_refused(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "hub/a.parquet"
    path.parent.mkdir()
    if content is None:
        parquet.write_table(make_table(9), path, compression="none", use_dictionary=False)
    else:
        path.write_bytes(content)

    refused = unpack_to(path.parent, tmp_path / "plain")
    assert refused.exit_code == 1
    assert str(path.parent) in refused.error
    assert problem in refused.error
    assert not (tmp_path / "plain").exists()


def test_a_damaged_file_leaves_nothing_of_itself(tmp_path: Path) -> None:
    source, output = write_folder(tmp_path / "hub"), tmp_path / "plain"
    path = source / "data/train-00000.parquet"
    data = bytearray(path.read_bytes())
    data[100:2000] = bytes(1900)
    path.write_bytes(data)

    failed = unpack_to(source, output)
    assert failed.exit_code == 1
    assert f"{path}: not a Parquet file, or a damaged one" in failed.stderr
    assert "download it again" in failed.stderr
    assert "data/train-00000.parquet" not in files_of(output)

    parquet.write_table(make_table(300), path)
    assert unpack_to(source, output).exit_code == 0
    assert "data/train-00000.parquet" in files_of(output)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = write_folder(tmp_path / "hub"), tmp_path / "plain"

    class Writer(parquet.ParquetWriter):
        def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(parquet, "ParquetWriter", Writer)
    failed = unpack_to(source, output)
    assert failed.exit_code == 1
    assert (
        "No space left on device (ENOSPC); fix it and run the same command again" in failed.stderr
    )
    assert not any(name.endswith("train-00000.parquet") for name in files_of(output))


def test_too_little_room_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = write_folder(tmp_path / "hub"), tmp_path / "plain"
    usage = type("Usage", (), {"free": 1_000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    refused = unpack_to(source, output)
    assert refused.exit_code == 2
    assert "as much again as the old files, and its disk has 0.0 MB left" in refused.stderr
    assert not output.exists()


def test_a_kill_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    source, output = write_folder(tmp_path / "hub"), tmp_path / "plain"
    code = (
        "import os; from pyarrow import parquet; from shardbeam.pipelines.cli.main import main\n"
        "parquet.ParquetWriter.close = lambda self: os.kill(os.getpid(), 9)\n"
        f"main(['unpack', {str(source)!r}, '--to', {str(output)!r}])"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert killed.returncode == -9, killed.stderr
    assert not list(output.glob("data/*"))

    assert unpack_to(source, output).exit_code == 0
    assert parquet.read_table(output / "data/train-00000.parquet").num_rows == 300
