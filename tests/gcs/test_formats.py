"""Each sample of a format from `gs://`: the same dataset as from local disk."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.formats.test_numbered_files import SETS
from tests.support.archive_files import write_zip
from tests.support.builds import build
from tests.support.dataset import read_dataset
from tests.support.format_samples import SAMPLES, FormatSample, SharedData
from tests.support.gcs_server import ProxiedGcs
from tests.support.odd_samples import ODD_SAMPLES, OddSample

IMAGES = (".jpg", ".jpeg", ".png")
MAP = re.compile("/SegmentationClass/|_mask[.]|/masks/")
FILES_OF_ONE_IMAGE = re.compile("/labels/|/Annotations/")
LOOKED_AT = [
    sample
    for sample in ODD_SAMPLES
    if "archive" in sample.name or sample.name.endswith("folders of splits")
]
ALL: list[FormatSample | OddSample] = [*SAMPLES, *LOOKED_AT]
# Each way to find and read files; the other samples take these ways again.
QUICK = {
    # Images beside files that the command names, whole or in parts.
    *("coco-masks", "open-images"),
    # Files beside the images, and lists of images.
    *("voc-maps", "yolo", "labelme: folders of splits"),
    # Archives and containers.
    *("voc: in an archive", "webdataset"),
}


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(each, marks=() if each.name in QUICK else pytest.mark.slow, id=each.name)
        for each in ALL
    ],
)
def test_the_same_as_from_local_disk(
    sample: FormatSample | OddSample,
    gcs: ProxiedGcs,
    bucket: str,
    tmp_path: Path,
    find_shared_data: SharedData,
) -> None:
    data = sample.place(tmp_path / "data", shared_data=find_shared_data)
    gcs.write_folder(f"{bucket}/data", data)
    gcs.proxy.reset()

    local = build(*sample.command(data), output=tmp_path / "local")
    assert not gcs.proxy.requests
    remote = build(*sample.command(f"{bucket}/data"), output=tmp_path / "remote")

    assert (local.exit_code, remote.exit_code) == (0, 0), local.stderr + remote.stderr
    # Looking around at launch must not cost a request a file.
    assert 0 < sum(not request.is_media for request in gcs.proxy.requests) <= 40
    # And each image, and each file about one image, is read once.
    reads = Counter(request.name for request in gcs.proxy.requests if request.is_media)
    singles = [name for name in reads if name.endswith(IMAGES) or FILES_OF_ONE_IMAGE.search(name)]
    again = [name for name in singles if reads[name] > 1]
    # The first maps are read at launch: their values, and the palette of the first one, decide
    # which classes they show. At most three of these samples have maps, and VOC's one.
    assert all(MAP.search(name) and reads[name] <= 3 for name in again)
    assert len(again) <= (3 if sample.name.startswith("masks") else 1)
    assert read_dataset(tmp_path / "remote") == read_dataset(tmp_path / "local")


def test_an_image_in_a_zip_is_one_request(
    gcs: ProxiedGcs, bucket: str, shapes: Path, tmp_path: Path
) -> None:
    images = {f"train/{path.name}": path.read_bytes() for path in (shapes / "images").iterdir()}
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


@pytest.mark.parametrize("name", SETS)
def test_a_numbered_file_that_is_missing(
    name: str, gcs: ProxiedGcs, bucket: str, tmp_path: Path
) -> None:
    key, data, names = SETS[name]
    for number in (0, 2):
        gcs.write(f"{bucket}/in/{names.format(f'0000{number}-of-00003')}", data)
    missing = names.format("00001-of-00003")
    ended = build(name, f"--{key}", f"{bucket}/in", output=tmp_path / "out", exit_code=1)
    assert f"{bucket}/in: {missing} is missing: 2 of 3 files of train" in ended.stderr
    pattern = f"{bucket}/in/{names.format('*')}"
    built = build(name, f"--{key}", pattern, output=tmp_path / "out")
    assert f"2 of 3 files of train: {missing} is not among them" in built.summary["warnings"]
