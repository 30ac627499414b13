"""The most important test: every runner and storage gives the same bytes and counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shardbeam.transforms.dataset.file_names import RUN_FILE
from tests.runners.flink import TIMEOUT_S, FlinkCluster, flink_cluster
from tests.runners.spark import spark_flags, spark_job_server
from tests.runners.tools import find_tool
from tests.support.dataset import (
    MIXED_SETTINGS,
    Tree,
    check_whole,
    coco_words,
    dataset_files,
    finish,
    read_tree,
    run,
    start,
)
from tests.support.gcs_server import FakeGcs

pytestmark = [pytest.mark.runners, pytest.mark.timing]

SETTINGS = (*MIXED_SETTINGS, "--set", "masks=png")


class Built(NamedTuple):
    """A dataset, and the command's output.

    Attributes:
        files: All files but those that differ from run to run.
        summary: The summary's status and counts.
        runner: What built it, as its record says.
    """

    files: Tree
    summary: dict[str, Any]
    runner: str


class Place(NamedTuple):
    """Where a build reads and writes.

    Attributes:
        root: Holds the input, and the output in `out`.
        read_output: Reads all files of the output.
        environment: Variables that workers need.
    """

    root: str
    read_output: Callable[[], Tree]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    with flink_cluster(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_job_server(tmp_path_factory.mktemp("spark")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def expected(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    output = tmp_path_factory.mktemp("expected") / "out"
    result = run(*coco_words(mixed, output, *SETTINGS, "--json"))
    built = describe(result.stdout, read_tree(output))
    assert check_whole(built.files)
    assert built.runner == "LocalRunner"
    assert b"image/object/mask" in built.files["features.json"]
    return built


@pytest.fixture(params=["local", "gs"])
def place(request: pytest.FixtureRequest, mixed: Path, tmp_path: Path) -> Place:
    if request.param == "local":
        for name in ("images", "annotations"):
            (tmp_path / name).symlink_to(mixed / name)
        return Place(str(tmp_path), lambda: read_tree(tmp_path / "out"), {})
    gcs: FakeGcs = request.getfixturevalue("gcs")
    bucket: str = request.getfixturevalue("bucket")
    gcs.write_folder(bucket, mixed)
    host = os.environ["STORAGE_EMULATOR_HOST"]
    return Place(bucket, lambda: gcs.read_tree(f"{bucket}/out"), {"STORAGE_EMULATOR_HOST": host})


def describe(stdout: str, tree: Tree) -> Built:
    """Puts together what is to be the same."""
    (record,) = [json.loads(data) for path, data in tree.items() if RUN_FILE.match(path)]
    assert not [path for path in tree if path.startswith(".staging/")]
    summary = json.loads(stdout)
    return Built(
        files=dataset_files(tree),
        summary={name: summary[name] for name in ("status", "exit_code", "splits")},
        runner=record["runner"],
    )


def build(place: Place, *flags: str, cwd: Path) -> Built:
    """Runs the command as a user does; its progress goes to stderr, its summary to stdout."""
    words = [
        *("build", "coco"),
        *("--images", f"{place.root}/images"),
        *("--annotations", f"{place.root}/annotations/instances.json"),
        *("--output", f"{place.root}/out"),
    ]
    process = start(*words, *SETTINGS, "--json", *flags, cwd=cwd)
    result = finish(process, timeout_s=TIMEOUT_S)
    assert result.exit_code == 0, result.stderr
    return describe(result.stdout, place.read_output())


def test_processes(place: Place, expected: Built, tmp_path: Path) -> None:
    assert build(place, "--processes=3", cwd=tmp_path) == expected


def test_prism(place: Place, expected: Built, tmp_path: Path) -> None:
    flags = ("--runner=PrismRunner", f"--prism_location={find_tool('prism')}")
    assert build(place, *flags, cwd=tmp_path) == expected._replace(runner="PrismRunner")


def test_flink(place: Place, expected: Built, cluster: FlinkCluster, tmp_path: Path) -> None:
    flags = cluster.flink_flags(environment=place.environment)
    assert build(place, *flags, cwd=tmp_path) == expected._replace(runner="FlinkRunner")


def test_flink_by_its_job_server(
    place: Place, expected: Built, cluster: FlinkCluster, tmp_path: Path
) -> None:
    flags = cluster.portable_flags(environment=place.environment)
    assert build(place, *flags, cwd=tmp_path) == expected._replace(runner="PortableRunner")


def test_spark(place: Place, expected: Built, spark: str, tmp_path: Path) -> None:
    flags = spark_flags(spark, folder=tmp_path, environment=place.environment)
    assert build(place, *flags, cwd=tmp_path) == expected._replace(runner="PortableRunner")
