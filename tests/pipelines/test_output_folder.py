"""The content of the output folder decides what a run may do with it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from shardbeam.transforms.storage.local import LocalStorage
from tests.support.archive_files import write_files
from tests.support.dataset import (
    coco_words,
    dataset_files,
    finish,
    last_run,
    read_dataset,
    read_tree,
    run,
    run_records,
    start,
)
from tests.support.stored import before_each, fail_with

SHARDS = ("--set", "output.num_shards=3")


@pytest.fixture(scope="module")
def built(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed dataset, to be read only."""
    output = tmp_path_factory.mktemp("built") / "out"
    assert run(*coco_words(shapes, output, *SHARDS)).exit_code == 0
    return output


@pytest.fixture
def output(built: Path, tmp_path: Path) -> Path:
    """A committed dataset to try things on."""
    shutil.copytree(built, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def inputs(shapes: Path, tmp_path: Path) -> Path:
    """The sample, to be changed."""
    folder = tmp_path / "shapes"
    for name in ("images", "annotations"):
        shutil.copytree(shapes / name, folder / name)
    return folder


# A committed dataset


def test_overwrite_replaces_it_and_keeps_what_is_not_ours(shapes: Path, output: Path) -> None:
    mine = {"notes.txt": b"mine", "index/mine.txt": b"mine", "runs/detect/1.json": b"mine"}
    for path, data in mine.items():
        (output / path).parent.mkdir(exist_ok=True)
        (output / path).write_bytes(data)
    words = coco_words(shapes, output, "--set", "output.num_shards=2", "--overwrite")
    assert run(*words).exit_code == 0
    files = read_tree(output)
    assert {path: files.pop(path) for path in mine} == mine
    assert not any("-of-00003" in path for path in files)
    assert sum("-of-00002" in path for path in files) == 4
    # The first run's record stays, too.
    assert len(run_records(output)) == 2


def test_overwrite_refused_at_the_gate_keeps_the_old_dataset(inputs: Path, output: Path) -> None:
    before = read_tree(output)
    for image in sorted((inputs / "images").iterdir())[:20]:
        image.write_bytes(b"")
    assert run(*coco_words(inputs, output, *SHARDS, "--overwrite")).exit_code == 3
    assert dataset_files(read_tree(output)) == dataset_files(before)


# --if-changed


def test_if_changed_does_nothing_where_nothing_has(
    shapes: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_tree(output)
    seen: list[str] = []
    before_each(monkeypatch, "read", seen.append)
    # Settings that change only how a build runs change no input either.
    flags = ("--threads=1", "--set", "rejects.max_ratio=0.5", "--direct_num_workers", "2")
    for more in ((), flags):
        result = run(*coco_words(shapes, output, *SHARDS, "--if-changed", "--json", *more))
        assert result.exit_code == 0
        summary = json.loads(result.stdout)
        assert (summary["status"], summary["current"]) == ("committed", True)
        assert summary["splits"]["train"]["examples"] == 40
        assert read_tree(output) == before
    # No byte of the images, and only the beginning of the annotations, which shows their kind.
    assert seen
    assert not [uri for uri in seen if uri.startswith(f"{shapes}/images/")]


def test_if_changed_takes_the_run_that_wrote_the_dataset_whatever_the_clock_says(
    shapes: Path, output: Path
) -> None:
    words = coco_words(shapes, output, *SHARDS)
    (first,) = run_records(output)
    other = coco_words(shapes, output, "--set", "output.num_shards=2")
    assert run(*other, "--overwrite").exit_code == 0
    # The clock went back by years before the second run.
    record = {**json.loads(first.read_bytes()), "finished_at": "2099-01-01T00:00:00+00:00"}
    first.write_text(json.dumps(record), encoding="utf-8")
    result = run(*words, "--if-changed")
    assert (result.exit_code, "inputs or config have changed" in result.stderr) == (2, True)
    assert "unchanged: " in run(*other, "--if-changed").stdout
    # In records of older versions, which name no manifest, the time decides.
    for file in run_records(output):
        record = json.loads(file.read_bytes())
        del record["manifest"]
        file.write_text(json.dumps(record), encoding="utf-8")
    assert "unchanged: " in run(*words, "--if-changed").stdout


def test_if_changed_sees_every_change(inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "own"
    words = coco_words(inputs, output, *SHARDS, "--if-changed", "--set", "rejects.max_ratio=1")
    assert run(*words).exit_code == 0
    before = read_tree(output)
    kept = Path(shutil.copytree(inputs, tmp_path / "kept"))
    first, second, *_ = sorted((inputs / "images").iterdir())
    # The change, or the flags that make it.
    changes: list[Callable[[], object] | tuple[str, ...]] = [
        lambda: os.utime(first),
        lambda: shutil.copy(first, first.with_name("new.jpg")),
        second.unlink,
        lambda: os.utime(inputs / "annotations" / "instances.json"),
        ("--set", "image.quality=90"),
        ("--version", "1.0.1"),
    ]
    for change in changes:
        if callable(change):
            change()
        result = run(*words, *(() if callable(change) else change), exit_code=2)
        assert "inputs or config have changed; add --overwrite" in result.error
        # And back.
        shutil.rmtree(inputs)
        shutil.copytree(kept, inputs)
        assert "unchanged: " in run(*words).stdout
        assert read_tree(output) == before

    words += ["--version", "1.0.1"]
    assert run(*words, "--overwrite").exit_code == 0
    assert len(run_records(output)) == 2
    assert "unchanged: " in run(*words).stdout
    assert len(run_records(output)) == 2


SHARD = "coco-train.tfrecord-00001-of-00003"


@pytest.mark.parametrize(
    ("paths", "found", "copied"),
    [
        ([SHARD, f"index/{SHARD}.parquet"], "is missing", 2),
        ([SHARD], "has 10 bytes; the manifest says ", 2),
        (["dataset_info.json", "labels.txt"], "is missing: readers see no dataset", 3),
    ],
)
def test_if_changed_repairs_what_is_missing(
    paths: list[str],
    found: str,
    copied: int,
    shapes: Path,
    output: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = read_dataset(output)
    for path in paths:
        data = (output / path).read_bytes()
        (output / path).unlink()
        if "10 bytes" in found:
            (output / path).write_bytes(data[:10])
    # Readers of that folder do not see a complete dataset at present.
    (tmp_path / "latest").write_text(f"{output}\n")
    latest = ("--set", f"output.latest={tmp_path}/latest")
    words = coco_words(shapes, output, *SHARDS, "--if-changed", *latest)
    result = run(*words, exit_code=0)
    assert f"reused: {copied} of 3 shards copied" in result.stdout
    assert caplog.messages[0].startswith(f"{output}: {paths[0]}: {found}")
    assert read_dataset(output) == whole
    assert "unchanged: " in run(*words).stdout


@pytest.mark.parametrize("content", [b"", b"{}", b'{"plan": 1}', b"\xff"])
def test_a_runs_record_that_cannot_be_read_tells_nothing(
    content: bytes, shapes: Path, output: Path
) -> None:
    (record,) = run_records(output)
    record.write_bytes(content)
    result = run(*coco_words(shapes, output, *SHARDS, "--if-changed"), exit_code=2)
    assert "have changed" in result.error


# Folders that are not ours


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["photo.jpg"], "(photo.jpg)"),
        (["a/b/c.txt", ".hidden"], "(.hidden, a/b/c.txt)"),
        (["1", "2", "3", "4", "5"], "(1, 2, 3 and 2 more)"),
        (["runs/detect/train/weights.pt"], "(runs/detect/train/weights.pt)"),
        (["dataset_info.json", "x.tfrecord-00000-of-00001"], "(dataset_info.json, x.tfrecord"),
    ],
)
def test_a_folder_with_other_files_is_refused(
    files: list[str], named: str, shapes: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    write_files(output, dict.fromkeys(files, "mine"))
    before = read_tree(output)
    for flags in ((), ("--overwrite",), ("--if-changed", "--overwrite")):
        result = run(*coco_words(shapes, output, *flags), exit_code=2)
        assert f"holds files that are not Shardbeam's {named}" in result.error
        assert read_tree(output) == before


@pytest.mark.parametrize("content", [b"", b"[]", b'{"name": "mine"}', b"\xff\xfe"])
def test_a_manifest_that_is_not_ours_is_refused(
    content: bytes, shapes: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_bytes(content)
    result = run(*coco_words(shapes, tmp_path / "out", "--overwrite"), exit_code=2)
    assert "manifest.json: not a manifest of Shardbeam" in result.error
    assert read_tree(tmp_path / "out") == {"manifest.json": content}


@pytest.mark.parametrize("below", ["", "/out"])
def test_a_file_is_no_folder(below: str, shapes: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = run(*coco_words(shapes, Path(f"{tmp_path}/file{below}"), "--overwrite"), exit_code=2)
    assert f"{tmp_path}/file{below}: cannot be a dataset's folder" in result.error
    assert read_tree(tmp_path) == {"file": b"mine"}


def test_an_empty_folder_beside_the_images_will_do(inputs: Path) -> None:
    output = inputs / "images-as-tfrecords"
    (output / "empty").mkdir(parents=True)
    assert run(*coco_words(inputs, output)).exit_code == 0


# Rejects


def test_too_many_rejects_commit_nothing_and_can_be_read(inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    spoilt = sorted((inputs / "images").iterdir())[:4]
    for image in spoilt:
        image.write_bytes(image.read_bytes()[:-200])
    words = coco_words(inputs, output, *SHARDS)
    result = run(*words, "--json", exit_code=3)
    summary = json.loads(result.stdout)
    assert summary["status"] == "refused"
    assert "split 'train': 4 of 40 inputs rejected (10.00%)" in summary["message"]
    assert dataset_files(read_tree(output)) == {}
    (file,) = Path(summary["rejects"]).iterdir()
    rejects = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [reject["key"] for reject in rejects] == [image.name for image in spoilt]
    assert {reject["reason"] for reject in rejects} == {"truncated"}

    assert run(*words, "--set", "rejects.max_ratio=1").exit_code == 0
    assert last_run(output)["outcome"]["resumed"]["shards"] == 3
    committed = read_dataset(output)
    assert committed["rejects/train.jsonl"] == file_content(rejects)


def file_content(rejects: list[dict[str, object]]) -> bytes:
    return b"".join(
        json.dumps(reject, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        for reject in rejects
    )


# Trouble with the disk


class FullDisk:
    """Lets a number of files be written, then reports that no space is left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files_left = 0
        self.full = False
        self._create = LocalStorage.create
        disk = self

        @contextlib.contextmanager
        def create(storage: LocalStorage, uri: str) -> Iterator[BinaryIO]:
            disk.files_left -= 1
            with disk._create(storage, uri) as file:
                yield file
                if disk.files_left < 0:
                    disk.full = True
                    # As a write or the last sync does.
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), uri)

        monkeypatch.setattr(LocalStorage, "create", create)


def test_a_full_disk_is_one_clear_line_and_can_be_repaired(
    shapes: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    words = coco_words(shapes, output, *SHARDS)
    expected = read_dataset(built)
    disk = FullDisk(monkeypatch)
    # Full at first, then with room for ever more files: the totals, each shard, the finish.
    for files in itertools.count(0, 3):
        disk.files_left, disk.full = files, False
        result = run(*words)
        # With room for all but the lease's release, which has time, nothing is wrong.
        if result.exit_code == 0:
            break
        assert disk.full
        assert result.exit_code == 1
        assert result.error == (
            f"{output}: cannot be written: No space left on device (ENOSPC); fix that and run the "
            "same command again, finished shards are kept"
        )
        assert "dataset_info.json" not in read_tree(output)
    assert result.exit_code == 0
    assert last_run(output)["outcome"]["resumed"]["shards"] == 3
    assert read_dataset(output) == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="to root, nothing is unwritable")
def test_an_unwritable_folder_is_one_clear_line(shapes: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = run(*coco_words(shapes, tmp_path / "out"), exit_code=1)
    assert "cannot be written: Permission denied" in result.error


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_trouble_of_workers_is_one_clear_line(shapes: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, "--processes=2"), cwd=tmp_path)
    # While it still imports.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    result = finish(process)
    assert result.exit_code == 1
    # A slow machine prints progress lines before it.
    message = result.stderr.splitlines()[-1]
    assert message.startswith(
        f"shardbeam: error: {output}: cannot be written: File too large (EFBIG); fix that"
    )
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("method", "name", "flag"),
    [
        ("read", "/manifest.json", "--if-changed"),
        ("read", "/index/", "--overwrite"),
        ("holds", "/.staging", "--if-changed"),
        ("create", "/done.", "--overwrite"),
        ("replace", "/outcome.json", "--overwrite"),
        ("swap", "/features.json", "--overwrite"),
    ],
)
def test_a_disk_that_fails_is_one_line_with_the_file(
    method: str,
    name: str,
    flag: str,
    shapes: Path,
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before_each(monkeypatch, method, fail_with(errno.EIO, where=name))
    message = run(*coco_words(shapes, output, *SHARDS, flag)).error
    assert "Input/output error" in message
    assert re.search(rf"{re.escape(str(output))}\S*{re.escape(name)}", message)


# plan


@pytest.mark.parametrize("fresh", [True, False])
def test_plan_writes_nothing(
    fresh: bool, inputs: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    before = tree_with_times(tmp_path)
    target = Path("new/out") if fresh else output
    words = coco_words(inputs, target, *SHARDS, "--set", "image.quality=90")
    result = run("plan", *words[1:], "--json", exit_code=0)
    summary = json.loads(result.stdout)
    assert summary["status"] == "approved"
    assert summary["splits"]["train"]["examples"] == 40
    assert summary["splits"]["train"]["shards"] == 3
    assert tree_with_times(tmp_path) == before


def tree_with_times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}
