"""Images inside archives become the same datasets as images in folders."""

from __future__ import annotations

import itertools
import json
import zipfile
from pathlib import Path

import pytest

from shardbeam.transforms.storage import limits
from tests.support.archive_files import write_tar, write_zip
from tests.support.builds import Build, build, build_config, build_shapes
from tests.support.dataset import read_tree, run


def _files(folder: Path, *, below: str) -> dict[str, bytes]:
    return {f"{below}{path}": data for path, data in read_tree(folder).items()}


def _shards(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in read_tree(folder).items() if ".tfrecord-" in path}


@pytest.fixture(scope="module")
def plain(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The sample, built from files in folders."""
    return build_shapes(shapes, output=tmp_path_factory.mktemp("plain") / "out")


def test_coco_in_a_zip(plain: Build, shapes: Path, tmp_path: Path) -> None:
    files = _files(shapes / "images", below="train/")
    archive = write_zip(tmp_path / "images.zip", files, method=zipfile.ZIP_STORED)
    annotations = shapes / "annotations" / "instances.json"
    words = ("coco", "--images", f"{archive}/train", "--annotations", annotations)
    built = build(*words, output=tmp_path / "archive")

    assert built.counts()["examples"] == 40
    assert _shards(built.output) == _shards(plain.output)
    # The sizes that are fingerprinted are the same, too: nothing is compressed.
    assert built.manifest == plain.manifest


def test_a_tar_of_tars_is_a_folder_per_class(shapes: Path, tmp_path: Path) -> None:
    classes = {
        f"{folder.name}.tar": write_tar(
            tmp_path / "class.tar", _files(folder, below="")
        ).read_bytes()
        for folder in sorted((shapes / "class_folders").iterdir())
    }
    archive = write_tar(tmp_path / "train.tar", classes)

    build("image-folder", "--images", shapes / "class_folders", output=tmp_path / "plain")
    build("image-folder", "--images", archive, output=tmp_path / "archive")

    assert _shards(tmp_path / "archive") == _shards(tmp_path / "plain")


def test_a_pattern_of_archives(shapes: Path, tmp_path: Path) -> None:
    files = _files(shapes / "images", below="")
    names = sorted(files)
    write_tar(tmp_path / "0.tar", {name: files[name] for name in names[:15]})
    write_zip(tmp_path / "1.zip", {name: files[name] for name in names[15:]})
    # A name that occurs twice.
    write_tar(tmp_path / "2.tar", {names[0]: files[names[0]]})
    built = build(
        "coco",
        *("--images", tmp_path / "[012].*"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        *("--set", "rejects.max_ratio=0.1"),
        output=tmp_path / "out",
    )

    assert sorted(built.by_key()) == names
    assert built.reasons() == {(names[0], "duplicate_key"): 1}


def test_members_that_cannot_be_read_are_rejects(shapes: Path, tmp_path: Path) -> None:
    files = _files(shapes / "images", below="")
    first, second, *_ = sorted(files)
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for name, data in files.items():
            method = zipfile.ZIP_BZIP2 if name == first else zipfile.ZIP_STORED
            writer.writestr(name, data, compress_type=method)
    data = archive.read_bytes()
    damaged = bytearray(files[second])
    damaged[-20] ^= 1
    archive.write_bytes(data.replace(files[second], bytes(damaged)))

    built = build(
        "coco",
        *("--images", archive, "--set", "rejects.max_ratio=0.1"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        output=tmp_path / "out",
    )

    assert built.reasons() == {
        (first, "image_unreadable"): 1,
        (second, "image_unreadable"): 1,
    }
    details = {reject["key"]: reject["detail"] for reject in built.rejects()}
    assert "BZIP2" in details[first]
    assert "checksum" in details[second]
    assert str(tmp_path) not in json.dumps(built.rejects())


def test_a_bad_name_costs_its_member_alone(shapes: Path, tmp_path: Path) -> None:
    cases = {
        b"/cat/bad.jpg": "no_class_folder",
        b"../cat/bad.jpg": "hidden_file",
        b"cat/\xff\xfe.jpg": "unreadable_name",
        b"cat/\0.jpg": "image_unreadable",
        b"cat/\x1b[31m\n.jpg": "",
    }
    data = next((shapes / "images").iterdir()).read_bytes()
    splits = {}
    for number, name in enumerate(cases):
        archive = tmp_path / f"{number}.zip"
        # Beyond ASCII, so that the names are said to be in UTF-8; of the same length.
        stand_in = "é" * (len(name) // 2) + "n" * (len(name) % 2)
        with zipfile.ZipFile(archive, "w") as writer:
            for member in ("cat/1.jpg", "dog/2.jpg", stand_in):
                writer.writestr(member, data)
        archive.write_bytes(archive.read_bytes().replace(stand_in.encode(), name))
        splits[f"s{number}"] = {"format": "image-folder", "images": str(archive)}

    built = build_config({"splits": splits, "rejects": {"max_ratio": 1}}, folder=tmp_path)

    for split, reason in zip(splits, cases.values(), strict=True):
        counts = built.counts(split)
        assert counts["rejected"] | counts["excluded"] == ({reason: 1} if reason else {})
        assert counts["examples"] == (2 if reason else 3)


def test_the_order_of_tars_changes_nothing(shapes: Path, tmp_path: Path) -> None:
    images = [path.read_bytes() for path in sorted((shapes / "images").iterdir())[:6]]
    for number in range(3):
        # All of them count from zero.
        files = {f"{index}.jpg": images[2 * number + index] for index in range(2)}
        write_tar(tmp_path / f"{number}.tar", files)
    tars = [("--tars", str(tmp_path / f"{number}.tar")) for number in range(3)]

    for name, given in (("one", tars), ("two", tars[::-1])):
        built = build("webdataset", *itertools.chain(*given), output=tmp_path / name)
        assert built.counts()["examples"] == 6

    assert _shards(tmp_path / "one") == _shards(tmp_path / "two")


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_init_of_an_archive_with_annotations(kind: str, shapes: Path, tmp_path: Path) -> None:
    files = _files(shapes / "images", below="train/")
    files["train/_annotations.coco.json"] = (shapes / "annotations" / "instances.json").read_bytes()
    archive = tmp_path / f"flowers.v1.{kind}"
    (write_zip if kind == "zip" else write_tar)(archive, files)
    config = tmp_path / "flowers.yaml"

    written = run("init", str(archive), "--output", str(config))
    built = build(config, output=tmp_path / "out")

    assert written.exit_code == 0, written.stderr
    assert "coco: 1 annotation file, 40 images" in written.stderr
    assert "name: flowers_v1\n" in config.read_text()
    assert built.counts()["examples"] == 40
    # The file of annotations is no input, although it lies among the images.
    assert built.counts()["excluded"] == {}


def test_a_large_file_in_an_archive_stays_on_disk(
    plain: Build, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (shapes / "annotations" / "instances.json").read_bytes()
    archive = write_zip(tmp_path / "annotations.zip", {"instances.json": data})
    monkeypatch.setattr(limits, "WHOLE_ANNOTATION_BYTES", 1_000)

    words = ("coco", "--images", shapes / "images", "--annotations", f"{archive}/instances.json")
    build(*words, output=tmp_path / "out")

    assert _shards(tmp_path / "out") == _shards(plain.output)


def test_if_changed_sees_that_an_archive_of_annotations_was_replaced(
    shapes: Path, tmp_path: Path
) -> None:
    data = (shapes / "annotations" / "instances.json").read_bytes()
    archive = write_zip(tmp_path / "annotations.zip", {"instances.json": data})
    words = ("coco", "--images", shapes / "images", "--annotations", f"{archive}/instances.json")
    build(*words, output=tmp_path / "out")

    again = build(*words, "--if-changed", output=tmp_path / "out")
    document = json.loads(data)
    document["annotations"] = document["annotations"][1:]
    write_zip(archive, {"instances.json": json.dumps(document)})
    changed = build(*words, "--if-changed", "--overwrite", output=tmp_path / "out")

    assert again.summary["current"] is True
    assert changed.summary["current"] is False
