"""Datasets in WebDataset tars, read by tarfile alone."""

from __future__ import annotations

import base64
import io
import itertools
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import DamagedError
from tests.support.archive_files import tar_bytes, write_tar
from tests.support.builds import Build, Json, build_config
from tests.support.image_makers import photograph, save
from tests.support.stored import stored_file

# Keys that would merge samples if they named the files.
KEYS = ("cat/im.v0.jpg", "cat/im.v1.jpg", "cat/im.v1.png", "dog.big/1.jpg")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A dataset of class folders in both image formats, beside its `images`; to be read only."""
    folder = tmp_path_factory.mktemp("webdataset")
    for number, key in enumerate(KEYS):
        path = folder / "images" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(save(photograph(seed=number), "PNG" if key.endswith("png") else "JPEG"))
    config: Json = {
        "name": "d",
        "source": {"format": "image-folder", "images": f"{folder}/images"},
        "output": {"container": "webdataset"},
    }
    return build_config(config, folder=folder)


@pytest.fixture
def data(built: Build) -> bytes:
    """The tar of that dataset."""
    (path,) = built.output.glob("*.tar")
    return path.read_bytes()


def samples(path: Path) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path, "r|") as tar:
        for member in tar:
            name, _, extension = member.name.partition(".")
            file = tar.extractfile(member)
            assert file is not None
            found.setdefault(name, {})[extension] = file.read()
    return found


def test_a_sample_has_the_image_and_all_other_keys(built: Build) -> None:
    (path,) = built.output.glob("*.tar")
    assert path.name == "d-train-00000-of-00001.tar"
    found = samples(path)
    assert list(found) == [f"{number:09d}" for number in range(len(KEYS))]
    rows = {}
    for sample in found.values():
        row = json.loads(sample["json"])
        rows[row["image/filename"]] = row
        (extension,) = sample.keys() - {"json"}
        assert extension == {"jpeg": "jpg", "png": "png"}[row["image/format"]]
        with Image.open(io.BytesIO(sample[extension])) as image:
            assert (image.width, image.height) == (row["image/width"], row["image/height"])
        source = built.output.parent / "images" / row["image/filename"]
        assert sample[extension] == source.read_bytes()
        # Everything but the image.
        assert row.keys() == {spec["key"] for spec in built.manifest["features"]} - {
            "image/encoded"
        }
    assert rows.keys() == set(KEYS)
    assert rows["dog.big/1.jpg"]["image/class/text"] in ("dog.big", ["dog.big"])


def test_headers_are_the_same_every_time_and_the_end_is_marked(data: bytes) -> None:
    assert data.endswith(bytes(1024))
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
            assert (member.uname, member.gname, member.isreg()) == ("", "", True)


def test_maps_are_files_and_masks_of_objects_are_in_base64(shapes: Path, tmp_path: Path) -> None:
    config: Json = {
        "source": {
            "format": "coco",
            "images": f"{shapes}/images",
            "panoptic": f"{shapes}/annotations/panoptic.json",
            "panoptic_masks": f"{shapes}/panoptic",
        },
        "output": {"container": "webdataset"},
    }
    built = build_config(config, folder=tmp_path, name="maps")
    (path,) = built.output.glob("*.tar")
    for sample in samples(path).values():
        for key in ("segmentation.class.encoded", "panoptic.instance_mask"):
            with Image.open(io.BytesIO(sample[f"image.{key}.png"])) as image:
                assert (image.mode, image.size) == ("L", (160, 120))

    config["source"] = {
        "format": "coco",
        "images": f"{shapes}/images",
        "annotations": [f"{shapes}/annotations/instances.json"],
    }
    built = build_config({**config, "masks": "png"}, folder=tmp_path, name="masks")
    (path,) = built.output.glob("*.tar")
    rows = [json.loads(sample["json"]) for sample in samples(path).values()]
    masks = list(itertools.chain(*(row["image/object/mask"] for row in rows)))
    assert len(masks) == sum(len(row["image/object/area"]) for row in rows) > 0
    with Image.open(io.BytesIO(base64.b64decode(masks[0]))) as image:
        assert image.size == (160, 120)
    boxes = [row["image/object/bbox/xmin"] for row in rows]
    assert all(isinstance(side, float) for row in boxes for side in row)


def test_bare_pixels_are_a_file(tmp_path: Path) -> None:
    from tests.support.cifar_files import write_cifar10

    write_cifar10(tmp_path / "cifar")
    config = {
        "source": {"format": "cifar10", "root": str(tmp_path / "cifar"), "pixels": "raw"},
        "output": {"container": "webdataset"},
    }
    built = build_config(config, folder=tmp_path)
    path = min(built.output.glob("*.tar"))
    for sample in samples(path).values():
        assert len(sample["image.encoded.bin"]) == 3072


# Tars of other people


def read(path: Path) -> list[tuple[int, bytes]]:
    return list(find_container("webdataset").read(stored_file(path)))


def test_tars_without_the_header_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"0.jpg": b"x", "0.json": b"{}"})
    with pytest.raises(DamagedError, match="a header that names their keys; build a dataset from"):
        read(path)
    assert read(write_tar(path, {})) == []


@pytest.mark.parametrize(
    "files",
    [
        [("000000000.json", b"[" * 100_000)],
        [("000000000.json", b"[]")],
        [("000000000.json", b'{"image/filename": {}}')],
        [("000000000.json", b"{}"), ("000000000.json", b"{}")],
        [("000000000.jpg", b"")],
        [("000000000", b"")],
    ],
)
def test_odd_samples_are_named(files: list[tuple[str, bytes]], data: bytes, tmp_path: Path) -> None:
    header = data[: data.index(b"000000000.")]
    path = tmp_path / "x.tar"
    path.write_bytes(header + tar_bytes(files))
    with pytest.raises(DamagedError, match=f"byte {len(header)}: not a sample of Shardbeam: "):
        read(path)


def test_a_cut_or_a_damaged_header_is_found(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for cut in (len(data) - 1024, len(data) // 2, 2000):
        path.write_bytes(data[:cut])
        with pytest.raises(DamagedError):
            read(path)
    begin = data.index(b"000000002.")
    path.write_bytes(data[:begin] + b"\1" * 200 + data[begin + 200 :])
    with pytest.raises(DamagedError, match=r"truncated or damaged|no tar header"):
        read(path)
