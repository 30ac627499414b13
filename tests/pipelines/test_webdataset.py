"""WebDataset tars, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.archive_files import write_tar
from tests.support.builds import build, build_config
from tests.support.dataset import read_tree


@pytest.fixture
def shards(shapes: Path, tmp_path: Path) -> Path:
    """Three tars of ten samples; all of them count from zero."""
    folder = tmp_path / "shards"
    folder.mkdir()
    pictures = sorted((shapes / "images").iterdir())
    for number in range(3):
        files = {}
        for index in range(10):
            picture = pictures[number * 10 + index]
            files[f"{index:06}.jpg"] = picture.read_bytes()
            files[f"{index:06}.cls"] = str(index % 4).encode()
            files[f"{index:06}.txt"] = f"picture {picture.stem}".encode()
            files[f"{index:06}.json"] = json.dumps({"similarity": index / 8}).encode()
        write_tar(folder / f"{number:05}.tar", files)
    return folder


def test_samples_become_examples(shards: Path, shapes: Path, tmp_path: Path) -> None:
    built = build("webdataset", "--tars", shards / "{00000..00002}.tar", output=tmp_path / "out")

    assert built.exit_code == 0
    by_key = built.by_key()
    assert len(by_key) == 30
    pictures = sorted((shapes / "images").iterdir())
    for number in range(3):
        for index in range(10):
            example = by_key[f"{number:05}.tar/{index:06}.jpg"]
            picture = pictures[number * 10 + index]
            assert example.encoded == picture.read_bytes()
            assert example.image_labels == [(str(index % 4), index % 4)]
            assert example.features["image/caption"] == [f"picture {picture.stem}".encode()]
            assert example.features["image/source_id"] == [f"{index:06}".encode()]


def test_the_order_of_the_tars_changes_nothing(shards: Path, tmp_path: Path) -> None:
    tars = [word for tar in sorted(shards.iterdir()) for word in ("--tars", str(tar))]
    reversed_tars = [
        word for tar in sorted(shards.iterdir())[::-1] for word in ("--tars", str(tar))
    ]

    build("webdataset", *tars, output=tmp_path / "one")
    build("webdataset", *reversed_tars, output=tmp_path / "two")

    one, two = read_tree(tmp_path / "one"), read_tree(tmp_path / "two")
    (shard,) = [path for path in one if ".tfrecord-" in path and "index" not in path]
    assert one[shard] == two[shard]


def test_fields_and_fractions(shards: Path, tmp_path: Path) -> None:
    built = build_config(
        {
            "source": {
                "format": "webdataset",
                "tars": [f"{shards}/*.tar"],
                "fields": {"similarity": "float"},
            },
            "fractions": {"train": 0.5, "validation": 0.5},
        },
        folder=tmp_path,
    )

    assert built.exit_code == 0
    found = {**built.by_key("train"), **built.by_key("validation")}
    assert len(found) == 30
    for key, example in found.items():
        assert example.features["similarity"] == [int(Path(key).stem) / 8]


def test_bad_samples_are_rejects(shards: Path, tmp_path: Path) -> None:
    write_tar(
        shards / "00003.tar",
        {"1.jpg": b"no image", "2.cls": b"1", "3.jpg": b"1", "3.png": b"2", "4.txt": b"x"},
    )

    built = build(
        *("webdataset", "--tars", shards, "--set", "rejects.max_ratio=0.5"),
        output=tmp_path / "out",
    )

    assert built.exit_code == 0
    assert built.counts()["examples"] == 30
    assert built.reasons() == {
        ("00003.tar/1.jpg", "not_an_image"): 1,
        ("00003.tar/2", "missing_image"): 1,
        ("00003.tar/3.jpg", "ambiguous_stem"): 1,
        ("00003.tar/3.png", "ambiguous_stem"): 1,
        ("00003.tar/4", "missing_image"): 1,
    }


def test_a_damaged_tar_stops_the_run_in_one_line(shards: Path, tmp_path: Path) -> None:
    tar = shards / "00001.tar"
    tar.write_bytes(tar.read_bytes()[:3000])

    built = build("webdataset", "--tars", shards, output=tmp_path / "out")

    assert built.exit_code == 1
    assert built.stderr.startswith(f"shardbeam: error: {tar}: byte 0: the tar is truncated")
    assert built.stderr.count("\n") == 1
