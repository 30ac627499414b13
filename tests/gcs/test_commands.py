"""Configs, classes files, `show`, `--if-changed` and errors of the commands, on `gs://`."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from shardbeam.transforms.storage.base import ANONYMOUS_VARIABLE
from tests.support import gcs_memory as memory
from tests.support.dataset import coco_words, dataset_files, read_dataset, read_tree, run
from tests.support.gcs_proxy import Request
from tests.support.gcs_server import ProxiedGcs


@pytest.fixture
def built(gcs: ProxiedGcs, bucket: str, shapes: Path) -> str:
    """A dataset in the bucket, from the sample there."""
    gcs.write_folder(f"{bucket}/in", shapes)
    result = run(*words(bucket))
    assert result.exit_code == 0, result.stderr
    gcs.proxy.reset()
    return f"{bucket}/out"


def words(bucket: str, *more: str) -> list[str]:
    return [
        *("build", "coco", "--images", f"{bucket}/in/images", "--output", f"{bucket}/out"),
        *("--annotations", f"{bucket}/in/annotations/instances.json", *more),
    ]


def test_show_reads_a_dataset_where_it_lies(gcs: ProxiedGcs, built: str) -> None:
    result = run("show", built, "--limit", "1")
    assert result.exit_code == 0, result.stderr
    assert "train, example 1 of 40" in result.stdout
    # Not all of the shard for one Example.
    assert gcs.proxy.counts()["get"] < 8
    assert run("show", f"{built}/none").exit_code == 1


def test_nothing_to_do_is_found_out_without_reading_an_image(
    gcs: ProxiedGcs, built: str, bucket: str
) -> None:
    before = gcs.read_tree(built)
    result = run(*words(bucket, "--if-changed", "--json"))
    assert json.loads(result.stdout)["current"]
    assert not [request for request in gcs.proxy.requests if request.name.startswith("in/images")]
    assert gcs.read_tree(built) == before
    # An image that was written again has another generation.
    gcs.write(f"{bucket}/in/images/000000000001.jpg", b"")
    result = run(*words(bucket, "--if-changed"))
    assert result.exit_code == 2
    assert "inputs or config have changed" in result.stderr


def test_a_committed_output_is_refused_and_replaced(
    gcs: ProxiedGcs, built: str, bucket: str
) -> None:
    assert "add --overwrite" in run(*words(bucket)).stderr
    gcs.write(f"{built}/notes.txt", b"mine")
    expected = dataset_files(gcs.read_tree(built))
    assert run(*words(bucket, "--overwrite")).exit_code == 0
    assert dataset_files(gcs.read_tree(built)) == expected


def test_foreign_files_in_the_output_are_refused(
    gcs: ProxiedGcs, bucket: str, shapes: Path
) -> None:
    gcs.write_folder(f"{bucket}/in", shapes)
    gcs.write(f"{bucket}/out/notes.txt", b"mine")
    result = run(*words(bucket))
    assert result.exit_code == 2
    assert "holds files that are not Shardbeam's (notes.txt)" in result.stderr
    assert gcs.names(f"{bucket}/out") == ["notes.txt"]


def test_an_output_within_the_images_is_refused(gcs: ProxiedGcs, bucket: str, shapes: Path) -> None:
    gcs.write_folder(f"{bucket}/in/annotations", shapes / "annotations")
    result = run(*words(bucket, "--set", f"output.path={bucket}/in/images/out"))
    assert result.exit_code == 2
    assert "lies within the images' folder" in result.stderr


def test_a_config_and_a_classes_file_may_lie_there(
    gcs: ProxiedGcs, bucket: str, shapes: Path, tmp_path: Path
) -> None:
    gcs.write_folder(f"{bucket}/in", shapes / "class_folders")
    classes = sorted(path.name for path in (shapes / "class_folders").iterdir())
    gcs.write(f"{bucket}/classes.txt", "\n".join(classes[::-1]).encode())
    source = {
        "format": "image-folder",
        "images": f"{bucket}/in",
        "classes": f"{bucket}/classes.txt",
    }
    config = {"name": "shapes", "splits": {"train": source}, "output": {"path": f"{bucket}/out"}}
    gcs.write(f"{bucket}/config.yaml", json.dumps(config).encode())
    result = run("build", f"{bucket}/config.yaml", "--set", f"output.path={tmp_path}/out")
    assert result.exit_code == 0, result.stderr
    names = read_tree(tmp_path / "out")["labels.txt"].decode().split()
    assert names == classes[::-1]
    missing = run("build", f"{bucket}/none.yaml")
    assert (missing.exit_code, missing.stderr) == (
        2,
        f"shardbeam: error: {bucket}/none.yaml: cannot be read: no such file\n",
    )


def test_objects_that_changed_after_the_listing_are_rejects(
    gcs: ProxiedGcs, bucket: str, shapes: Path
) -> None:
    gcs.write_folder(f"{bucket}/in", shapes)
    replaced, deleted = (f"in/images/00000000000{number}.jpg" for number in (1, 2))
    other = gcs.read(f"{bucket}/in/images/000000000005.jpg")

    change_once = threading.Lock()

    def decide(request: Request) -> None:
        # The images are listed then, and none of them is read. The progress line asks for it, too.
        if request.name.endswith("totals.json") and change_once.acquire(blocking=False):
            gcs.write(f"{bucket}/{replaced}", other)
            gcs.delete(f"{bucket}/{deleted}")

    gcs.proxy.decide = decide
    result = run(*words(bucket, "--set", "rejects.max_ratio=0.1", "--json"))
    assert result.exit_code == 0, result.stderr
    rejects = gcs.read(f"{bucket}/out/rejects/train.jsonl").splitlines()
    assert [(json.loads(line)["key"], json.loads(line)["reason"]) for line in rejects] == [
        ("000000000001.jpg", "changed_since_listing"),
        ("000000000002.jpg", "changed_since_listing"),
    ]
    assert json.loads(result.stdout)["storage"]["requests"] == gcs.proxy.counts()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("images", "{bucket}/none: no files found; is this the images' folder?"),
        ("annotations", "{bucket}/none: no such file"),
    ],
)
def test_what_is_missing_is_named(
    what: str, message: str, gcs: ProxiedGcs, bucket: str, shapes: Path
) -> None:
    gcs.write_folder(f"{bucket}/in", shapes)
    value = f"[{bucket}/none]" if what == "annotations" else f"{bucket}/none"
    result = run(*words(bucket, "--set", f"splits.train.{what}={value}"))
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        f"shardbeam: error: {message.format(bucket=bucket)}",
    )


def test_denied_access_ends_a_build_in_one_line(gcs: ProxiedGcs, bucket: str, shapes: Path) -> None:
    gcs.write_folder(f"{bucket}/in", shapes)
    gcs.proxy.decide = lambda request: (
        "403" if request.is_media and request.name.startswith("in/images") else None
    )
    result = run(*words(bucket))
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith(f"shardbeam: error: {bucket}/in/images/0000000000")
    assert "storage.objects.get is needed; grant roles/storage.objectViewer" in line


def test_a_sick_network_makes_no_rejects(
    gcs: ProxiedGcs, bucket: str, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardbeam.transforms.storage.failures.DEADLINE_S", 0.3)
    gcs.write_folder(f"{bucket}/in", shapes)
    gcs.proxy.decide = lambda request: (
        "503" if request.is_media and request.name.endswith("7.jpg") else None
    )
    result = run(*words(bucket, "--set", "rejects.max_ratio=1"))
    assert result.exit_code == 1
    assert "no answer from Google Cloud Storage" in result.stderr
    # And once it is well, all is as if nothing had been.
    gcs.proxy.reset()
    result = run(*words(bucket, "--json"))
    assert json.loads(result.stdout)["splits"]["train"]["examples"] == 40


def test_anonymous_is_said_to_the_storage(
    gcs: ProxiedGcs, built: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it is taken back in the end.
    monkeypatch.setenv(ANONYMOUS_VARIABLE, "")
    assert run("show", built, "--anonymous").exit_code == 0
    assert os.environ[ANONYMOUS_VARIABLE] == "1"


@pytest.mark.parametrize("scheme", ["memory", "folders"])
def test_a_build_by_fsspec(scheme: str, shapes: Path, tmp_path: Path) -> None:
    memory.clear()
    root = f"{scheme}://host"
    for path, data in read_tree(shapes).items():
        memory.write(f"{root}/in/{path}", data)
    assert run(*coco_words(shapes, tmp_path / "out")).exit_code == 0
    result = run(*words(root))
    assert result.exit_code == 0, result.stderr
    written = memory.read_tree(f"{root}/out")
    assert not [path for path in written if path.startswith(".staging")]
    assert dataset_files(written) == read_dataset(tmp_path / "out")


def test_unknown_schemes_are_refused_by_name(tmp_path: Path, shapes: Path) -> None:
    for uri, problem in (
        ("nope://host/x", "no file system of this scheme is known"),
        ("s3://host/x", "no file system of this scheme is known (Install s3fs"),
        ("gcs://host/x", "no file system of this scheme is known (Please install gcsfs"),
        ("file:///x", "write local paths without file://"),
    ):
        result = run(*coco_words(shapes, tmp_path / "out", "--set", f"output.path={uri}"))
        assert result.exit_code == 2
        assert f"{uri.partition('/')[0]}//: {problem}" in result.stderr
