"""Pascal VOC and YOLO on `gs://`: the same datasets as from local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gcs.server import ProxiedGcs
from tests.gcs.test_archives import build
from tests.pipelines.test_voc import small_voc, write_files
from tests.pipelines.test_yolo import small_yolo


@pytest.mark.parametrize("format_name", ["voc", "yolo"])
def test_the_same_as_from_local_disk(
    gcs: ProxiedGcs, bucket: str, tmp_path: Path, format_name: str
) -> None:
    files = {"voc": small_voc, "yolo": small_yolo}[format_name]()
    folder = write_files(tmp_path / "data", files)
    gcs.write_folder(f"{bucket}/data", folder)
    local = build(format_name, "--root", folder, output=tmp_path / "local")
    gcs.proxy.reset()

    remote = build(format_name, "--root", f"{bucket}/data", output=tmp_path / "remote")

    assert len(local) == 2
    assert remote == local
    # Looking around at launch must not cost a request a file.
    listings = sum(not request.is_media for request in gcs.proxy.requests)
    assert listings <= 25
