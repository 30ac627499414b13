"""Configs, classes files, `show`, `--if-changed` and errors of the commands, on `gs://`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardbeam.transforms.storage.base import ANONYMOUS_VARIABLE
from tests.support.dataset import Tree, coco_words, dataset_files, read_tree, run
from tests.support.gcs_server import ProxiedGcs
from tests.support.pages import commands


@pytest.fixture(scope="module")
def made(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("made") / "out"
    assert run(*coco_words(shapes, output)).exit_code == 0
    return read_tree(output)


@pytest.fixture
def built(gcs: ProxiedGcs, bucket: str, source: str, made: Tree) -> str:
    """A dataset in the bucket, of the sample there."""
    gcs.write_tree(f"{bucket}/out", made)
    gcs.proxy.reset()
    return f"{bucket}/out"


def words(bucket: str, *more: str) -> list[str]:
    return coco_words(f"{bucket}/in", f"{bucket}/out", *more)


def test_show_reads_a_dataset_where_it_lies(gcs: ProxiedGcs, built: str) -> None:
    result = run("show", built, "--limit", "1", exit_code=0)
    assert "train, example 1 of 40" in result.stdout
    # Not all of the shard for one Example.
    assert gcs.proxy.counts()["get"] < 8
    assert run("show", f"{built}/none").exit_code == 1


def test_nothing_is_written_over_a_dataset_in_the_bucket(
    gcs: ProxiedGcs, built: str, bucket: str
) -> None:
    before = gcs.read_tree(bucket)
    convert = ("convert", built, "--container", "tfrecord", "--overwrite", "--output")
    for command, problem in (
        ([*convert, f"{bucket}//./out/"], " itself; choose another path"),
        ([*convert, f"{built}/new"], "lies within the input "),
        (coco_words(f"{bucket}/in", f"{built}/new/folder"), "lies in a dataset "),
        (coco_words(f"{bucket}/in", f"{bucket}/in/images"), " itself; choose another path"),
        (["report", built, "--examples", "1", "--output", f"{built}/r.html"], "lies in a dataset "),
    ):
        result = run(*command)
        assert (result.exit_code, problem in result.stderr) == (2, True), result
    assert gcs.read_tree(bucket) == before


def test_diff_reads_only_the_examples_that_differ(gcs: ProxiedGcs, built: str, bucket: str) -> None:
    annotations = f"{bucket}/in/annotations/instances.json"
    document = json.loads(gcs.read(annotations))
    for number in (0, -1):
        document["annotations"][number]["bbox"][2] -= 1
    gcs.write(annotations, json.dumps(document).encode())
    assert run(*coco_words(f"{bucket}/in", f"{bucket}/new")).exit_code == 0
    gcs.proxy.reset()
    result = run("diff", built, f"{bucket}/new", exit_code=0)
    assert result.stdout.count(" moved from ") == 2
    read = [request.name for request in gcs.proxy.requests if request.is_media]
    # Two Examples of each dataset, with one request each: to compare their labels, because only
    # digests say that these differ, and to describe what has changed.
    assert sum("tfrecord-0" in name and "index" not in name for name in read) == 8


def test_export_reads_a_dataset_where_it_lies(
    gcs: ProxiedGcs, built: str, shapes: Path, tmp_path: Path
) -> None:
    before = gcs.read_tree(built)
    result = run("export", built, "--format", "yolo", "--output", str(tmp_path / "yolo"))
    assert result.exit_code == 0, result.stderr
    found: Tree = {}
    for folder in (tmp_path / "yolo" / "images").iterdir():
        found |= read_tree(folder)
    assert found == read_tree(shapes / "images")
    assert gcs.read_tree(built) == before


def test_a_report_reads_only_the_examples_that_it_shows(
    gcs: ProxiedGcs, built: str, tmp_path: Path
) -> None:
    page = str(tmp_path / "page.html")
    run("report", built, "--output", page, "--examples", "3", exit_code=0)
    read = [request.name for request in gcs.proxy.requests if request.is_media]
    shards = [name for name in read if "/index/" not in name and ".tfrecord-" in name]
    assert len(shards) == 3
    # The counts come from the statistics, the choice from the indexes.
    rest = [name for name in read if name not in shards]
    assert len({name for name in rest if "/index/" in name}) >= 1
    assert all(rest.count(name) == 1 for name in rest if "/index/" in name or "statistics" in name)
    assert sum(name.endswith("manifest.json") for name in rest) == 1


def test_a_committed_output_is_refused_and_replaced(
    gcs: ProxiedGcs, built: str, bucket: str
) -> None:
    assert "add --overwrite" in run(*words(bucket)).stderr
    gcs.write(f"{built}/notes.txt", b"mine")
    expected = dataset_files(gcs.read_tree(built))
    assert run(*words(bucket, "--overwrite")).exit_code == 0
    assert dataset_files(gcs.read_tree(built)) == expected


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


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("images", "{bucket}/none: there is no such folder"),
        ("images", "{bucket}/empty: the folder is empty; is this the images' folder?"),
        ("annotations", "{bucket}/none: no such file"),
    ],
)
@pytest.mark.usefixtures("source")
def test_what_is_missing_is_named(what: str, message: str, gcs: ProxiedGcs, bucket: str) -> None:
    # Consoles make such an object for an empty folder.
    gcs.write(f"{bucket}/empty/", b"")
    message = message.format(bucket=bucket)
    uri = message.partition(": ")[0]
    value = f"[{uri}]" if what == "annotations" else uri
    result = run(*words(bucket, "--set", f"splits.train.{what}={value}"))
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        f"shardbeam: error: {message}",
    )


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("403", "storage.objects.get is needed; grant roles/storage.objectViewer"),
        ("503", "no answer from Google Cloud Storage"),
    ],
)
def test_images_that_the_storage_withholds_are_no_rejects(
    fault: str, problem: str, gcs: ProxiedGcs, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardbeam.transforms.storage.failures.DEADLINE_S", 0.3)
    gcs.proxy.decide = lambda request: (
        fault if request.is_media and request.name.endswith("7.jpg") else None
    )
    result = run(*words(bucket, "--set", "rejects.max_ratio=1"), exit_code=1)
    line = result.stderr.splitlines()[-1]
    assert line.startswith(f"shardbeam: error: {bucket}/in/images/0000000000")
    assert problem in line
    # Once the service works again, the command does, too.
    gcs.proxy.reset()
    result = run(*words(bucket, "--json"))
    assert json.loads(result.stdout)["splits"]["train"]["examples"] == 40


def test_anonymous_is_said_to_the_storage(
    gcs: ProxiedGcs, built: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Set first, so that monkeypatch restores it at the end.
    monkeypatch.setenv(ANONYMOUS_VARIABLE, "")
    assert run("show", built, "--anonymous").exit_code == 0
    assert os.environ[ANONYMOUS_VARIABLE] == "1"


def test_unknown_schemes_are_refused_by_name(tmp_path: Path, shapes: Path) -> None:
    for uri, problem in (
        ("nope://host/x", "no file system is known for this scheme"),
        ("s3://host/x", "no file system is known for this scheme (Install s3fs"),
        ("gcs://host/x", "no file system is known for this scheme (Please install gcsfs"),
        ("file:///x", "write local paths without file://"),
    ):
        result = run(*coco_words(shapes, tmp_path / "out", "--set", f"output.path={uri}"))
        assert result.exit_code == 2
        assert f"{uri.partition('/')[0]}//: {problem}" in result.stderr


# The commands in docs/internals/storage.md run unchanged


def test_the_commands_run(gcs: ProxiedGcs, bucket: str, shapes: Path) -> None:
    gcs.write_folder(f"{bucket}/coco/images", shapes / "images")
    annotations = (shapes / "annotations" / "instances.json").read_bytes()
    gcs.write(f"{bucket}/coco/instances.json", annotations)
    shown = commands("docs/internals/storage.md")
    assert [command[:2] for command in shown] == [
        ["shardbeam", command] for command in ("plan", "build", "show")
    ]
    for command in shown:
        words = [word.replace("gs://my-bucket", bucket) for word in command[1:]]
        run(*words, exit_code=0)
