"""Archives on `gs://` give the same datasets as local ones; the tests count their requests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.archive_files import write_tar, write_zip
from tests.support.dataset import Tree, read_dataset, run
from tests.support.gcs_server import ProxiedGcs


def build(*words: str | Path, output: Path) -> Tree:
    result = run("build", *map(str, words), "--output", str(output))
    assert result.exit_code == 0, result.stderr
    return read_dataset(output)


@pytest.fixture
def images(shapes: Path) -> dict[str, bytes]:
    return {f"train/{path.name}": path.read_bytes() for path in (shapes / "images").iterdir()}


def test_an_image_in_a_zip_is_one_request(
    gcs: ProxiedGcs, bucket: str, shapes: Path, images: dict[str, bytes], tmp_path: Path
) -> None:
    archive = write_zip(tmp_path / "images.zip", images)
    gcs.write(f"{bucket}/images.zip", archive.read_bytes())
    gcs.proxy.reset()
    build(
        *("coco", "--images", f"{bucket}/images.zip/train"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        output=tmp_path / "out",
    )
    # And the directory is in the last 8 MB.
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
    shards = []
    for name, tars in (
        ("local", f"{tmp_path}/tars/[0-4].tar"),
        ("gcs", f"{bucket}/tars/*[0-4].tar"),
    ):
        tree = build("webdataset", "--tars", tars, output=tmp_path / name)
        shards.append([data for path, data in tree.items() if path.endswith("-of-00001")])
    assert len(shards[0]) == 1
    assert shards[0] == shards[1]
