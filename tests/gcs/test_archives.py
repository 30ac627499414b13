"""Archives on `gs://`: the same datasets as from local disk, and what they cost in requests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.archive_files import write_tar, write_zip
from tests.support.cifar_files import write_cifar10
from tests.support.dataset import Tree, read_tree, run
from tests.support.gcs_server import ProxiedGcs


def shards(tree: Tree) -> Tree:
    return {
        path: data
        for path, data in tree.items()
        if ".tfrecord-" in path and not path.startswith("index/")
    }


def build(*words: str | Path, output: Path) -> Tree:
    result = run("build", *map(str, words), "--output", str(output))
    assert result.exit_code == 0, result.stderr
    return shards(read_tree(output))


@pytest.fixture
def images(shapes: Path) -> dict[str, bytes]:
    return {f"train/{path.name}": path.read_bytes() for path in (shapes / "images").iterdir()}


def test_coco_in_a_zip(
    gcs: ProxiedGcs, bucket: str, shapes: Path, images: dict[str, bytes], tmp_path: Path
) -> None:
    archive = write_zip(tmp_path / "images.zip", images)
    gcs.write(f"{bucket}/images.zip", archive.read_bytes())
    annotations = ("--annotations", shapes / "annotations" / "instances.json")
    local = build("coco", "--images", f"{archive}/train", *annotations, output=tmp_path / "local")
    gcs.proxy.reset()

    remote = build(
        "coco", "--images", f"{bucket}/images.zip/train", *annotations, output=tmp_path / "remote"
    )

    assert remote == local
    # One request for each image; the directory is in the last 8 MB.
    kinds = Counter(request.is_media for request in gcs.proxy.requests)
    assert kinds[True] <= len(images) + 2
    assert kinds[False] <= 2


def test_webdataset_by_a_pattern(
    gcs: ProxiedGcs, bucket: str, images: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "tars").mkdir()
    for number, (_, image) in enumerate(sorted(images.items())[:6]):
        files = {"1.jpg": image, "1.cls": b"3", "1.txt": b"a picture"}
        tar = write_tar(tmp_path / "tars" / f"{number}.tar", files)
        gcs.write(f"{bucket}/tars/{number}.tar", tar.read_bytes())

    local = build("webdataset", "--tars", tmp_path / "tars" / "[0-4].tar", output=tmp_path / "one")
    for name, tars in (("two", "[0-4].tar"), ("three", "{0..4}.tar")):
        assert (
            build("webdataset", "--tars", f"{bucket}/tars/{tars}", output=tmp_path / name) == local
        )


def test_cifar(gcs: ProxiedGcs, bucket: str, tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar")
    gcs.write_folder(f"{bucket}/cifar", tmp_path / "cifar")

    local = build("cifar10", "--root", tmp_path / "cifar", output=tmp_path / "local")

    assert build("cifar10", "--root", f"{bucket}/cifar", output=tmp_path / "remote") == local
    assert len(local) == 2
