"""The container image: the command, the template's launcher and Flink's workers run in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbeam.pipelines.runners.options import Versions, own_versions
from tests.runners.cloud import Cloud
from tests.runners.flink import TIMEOUT_S, flink_cluster
from tests.runners.image import Container, remove_container, start_container
from tests.support.dataset import (
    MIXED_SETTINGS,
    Tree,
    coco_words,
    finish,
    read_dataset,
    run,
    start,
)

# The image is built by the first of them.
pytestmark = [pytest.mark.runners, pytest.mark.timing, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    container = start_container()
    yield container
    remove_container(container)


@pytest.fixture(scope="module")
def expected(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(mixed, output, *MIXED_SETTINGS)).exit_code == 0
    return read_dataset(output)


def image_versions(container: Container) -> Versions:
    labels = container.config["Labels"]
    return Versions(labels["shardbeam.python"], labels["shardbeam.beam"])


def skip_with_another_python(container: Container) -> None:
    versions = image_versions(container)
    if versions != own_versions():
        pytest.skip(f"the image's stand-in has {versions}, and this is {own_versions()}")


def test_the_labels_say_what_is_in_it(container: Container) -> None:
    code = "from shardbeam.pipelines.runners.options import own_versions; print(*own_versions())"
    told = container.run("python", "-c", code)
    assert told.exit_code == 0, told.stderr
    assert Versions(*told.stdout.split()) == image_versions(container)


def test_the_command(container: Container) -> None:
    assert container.run().stdout.startswith("usage: shardbeam ")
    assert container.run("shardbeam", "--version").stdout.startswith("shardbeam ")


def test_flags_go_to_beams_boot(container: Container) -> None:
    result = container.run("--id=1-1")
    assert result.exit_code != 0
    assert "No provision endpoint provided" in result.stderr


def test_no_tensorflow(container: Container) -> None:
    assert (
        "No module named 'tensorflow'" in container.run("python", "-c", "import tensorflow").stderr
    )


def test_nothing_of_the_checkout_is_left(container: Container) -> None:
    listed = container.run("ls", "/opt/shardbeam").stdout.split()
    locks = [f"requirements-{name}.lock" for name in ("adlfs", "s3fs", "worker")]
    assert sorted(listed) == ["entrypoint.sh", "launcher.py", *locks]


@pytest.mark.parametrize("uri", ["s3://bucket/a", "abfs://container/a"])
def test_packages_for_other_storages(uri: str, container: Container) -> None:
    code = f"import fsspec; print(fsspec.get_filesystem_class({uri.partition(':')[0]!r}).protocol)"
    result = container.run("python", "-c", code)
    assert result.exit_code == 0, result.stderr


def test_a_build_in_it(container: Container, mixed: Path, expected: Tree, tmp_path: Path) -> None:
    words = coco_words(Path("/data/in"), Path("/data/out/dataset"), *MIXED_SETTINGS)
    folders = {mixed: "/data/in", tmp_path: "/data/out"}
    result = container.run("shardbeam", *words, folders=folders)
    assert result.exit_code == 0, result.stderr
    assert _without_codecs(read_dataset(tmp_path / "dataset")) == _without_codecs(expected)


def _without_codecs(dataset: Tree) -> dict[str, object]:
    """Leaves out what the manifest says about codecs: only this machine has that of HEIC."""
    manifest = json.loads(dataset["manifest.json"])
    del manifest["codecs"], manifest["checksum"]
    return {**dataset, "manifest.json": manifest}


def test_the_template_is_launched(container: Container, cloud: Cloud) -> None:
    template = f"{cloud.bucket}/templates/job"
    image = f"apache/beam_python{'{}_sdk:{}'.format(*image_versions(container))}"
    result = container.run(
        "/opt/google/dataflow/python_template_launcher",
        "--format=coco",
        f"--images={cloud.bucket}/images",
        f'--annotations=["{cloud.bucket}/annotations/instances.json"]',
        f"--output={cloud.output}",
        "--if_changed=true",
        f"--sdk_container_image={image}",
        f"--template_location={template}",
        *(f"{flag}=true" if flag == "--no_auth" else flag for flag in cloud.job_flags),
        environment={"STORAGE_EMULATOR_HOST": os.environ["STORAGE_EMULATOR_HOST"]},
    )
    assert result.exit_code == 0, result.stderr
    job = json.loads(cloud.gcs.read(template))
    (pool,) = job["environment"]["workerPools"]
    assert pool["workerHarnessContainerImage"] == image


def test_flinks_workers_in_it(
    container: Container, mixed: Path, expected: Tree, tmp_path: Path
) -> None:
    skip_with_another_python(container)
    folder = tmp_path / "flink"
    folder.mkdir()
    folders = {mixed: str(mixed), tmp_path: str(tmp_path)}
    worker = container.write_worker(folder / "container-worker", folders=folders)
    output = tmp_path / "out"
    with flink_cluster(folder) as cluster:
        flags = cluster.portable_flags(worker=worker)
        process = start(*coco_words(mixed, output, *MIXED_SETTINGS, *flags), cwd=tmp_path)
        result = finish(process, timeout_s=TIMEOUT_S)
        assert result.exit_code == 0, result.stderr
        # Not by chance in this environment.
        assert not list(folder.glob("worker"))
    assert read_dataset(output) == expected
