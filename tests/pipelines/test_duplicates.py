"""Builds with pictures that occur several times."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pyarrow import parquet

from tests.support.builds import build as build_dataset
from tests.support.builds import build_config
from tests.support.dataset import read_dataset, run
from tests.support.image_makers import photograph, save

# Photographs that are re-encoded in the other class folder.
RECODED = range(20, 25)
SPLITS = ("--fractions", "train=0.75,validation=0.25")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight pictures in two class folders each; ten others; two nearly the same, two flat.

    Five photographs are in both folders, too, with another quality.
    """
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
        for number in range(8):
            data = save(photograph(width=160, height=120, seed=number), "JPEG")
            (folder / name / f"{number}.jpg").write_bytes(data)
    for number in range(8, 18):
        data = save(photograph(width=160, height=120, seed=number), "JPEG")
        (folder / "cats" / f"{number}.jpg").write_bytes(data)
    near = photograph(width=160, height=120, seed=17).resize((80, 60))
    (folder / "cats" / "small.jpg").write_bytes(save(near, "JPEG", quality=50))
    for name, quality in (("cats", 95), ("dogs", 60)):
        for number in range(20, 25):
            data = save(photograph(width=160, height=120, seed=number), "JPEG", quality=quality)
            (folder / name / f"{number}.jpg").write_bytes(data)
    for number, level in enumerate((250, 255)):
        flat = Image.new("RGB", (160, 120), (level,) * 3)
        (folder / "cats" / f"flat{number}.jpg").write_bytes(save(flat, "JPEG"))
    return folder


def build(pictures: Path, output: Path, *more: str, exit_code: int = 0) -> dict[str, Any]:
    """Builds, and returns the summary."""
    words = ("image-folder", "--images", str(pictures), *SPLITS, *more)
    return build_dataset(*words, output=output, exit_code=exit_code).summary


def rows_of(output: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(output / "duplicates.parquet").to_pylist()
    return rows


@pytest.fixture(scope="module")
def printed(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The dataset, and what the command has printed."""
    output = tmp_path_factory.mktemp("built") / "dataset"
    words = ("build", "image-folder", "--images", str(pictures), "--output", str(output))
    return output, run(*words, *SPLITS, exit_code=0).stdout


@pytest.fixture(scope="module")
def built(printed: tuple[Path, str]) -> Path:
    return printed[0]


def test_eight_pictures_in_two_class_folders(built: Path) -> None:
    rows = rows_of(built)
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    keys = sorted(sorted(row["key"] for row in group) for group in groups.values())
    assert keys == sorted(
        [
            *([f"cats/{number}.jpg", f"dogs/{number}.jpg"] for number in (*range(8), *RECODED)),
            ["cats/17.jpg", "cats/small.jpg"],
        ]
    )
    for group in groups.values():
        recoded = any(f"cats/{number}.jpg" == row["key"] for row in group for number in RECODED)
        is_near = recoded or any(row["key"] == "cats/small.jpg" for row in group)
        assert {row["contradiction"] for row in group} == {not is_near}
        assert {row["near_contradiction"] for row in group} == {recoded}
        assert {row["leak"] for row in group} == {len({row["split"] for row in group}) > 1}
        assert [row["keep"] for row in group] == [True, False]
    manifest = json.loads((built / "manifest.json").read_bytes())
    leaks = sum(group[0]["leak"] for group in groups.values())
    assert leaks
    assert manifest["duplicates"] == {
        "groups": 14,
        "images": 28,
        "equal": 8,
        "leaks": leaks,
        "leaking": dict(Counter(row["split"] for row in rows_of(built) if row["leak"])),
        "contradictions": 8,
        "near_contradictions": 5,
        "near": 3,
        "crowded": 0,
        "unlisted": 0,
        "same_pictures": {},
        "cropped": 0,
        "unequal_objects": {},
    }
    assert "duplicates.parquet" in [file["path"] for file in manifest["files"]]


def test_rows_are_where_the_file_says(built: Path) -> None:
    for row in rows_of(built):
        (index,) = (built / "index").glob(f"*{row['split']}*-{row['shard']:05d}-of-*")
        found = parquet.read_table(io.BytesIO(index.read_bytes())).to_pylist()[row["row"]]
        for column in ("key", "source", "sha256", "labels"):
            assert found[column] == row[column]


def test_the_summary_says_it(printed: tuple[Path, str]) -> None:
    _, stdout = printed
    assert "duplicates: 14 groups of 28 equal or nearly equal pictures, " in stdout
    assert ", 8 with different labels of equal files" in stdout
    assert "warning: 8 groups of equal files have different labels, such as " in stdout
    assert " in another split, too, such as " in stdout
    near = "warning: 5 groups of nearly equal pictures have different classes, such as "
    (line,) = [line for line in stdout.splitlines() if line.startswith(near)]
    assert "cats/" in line
    assert "dogs/" in line


REFUSED = ("leaks", "contradictions", "near_contradictions")


def test_they_can_be_refused(pictures: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    refuse, warn = (
        [word for key in REFUSED for word in ("--set", f"duplicates.{key}={rule}")]
        for rule in ("refuse", "warn")
    )
    summary = build(pictures, output, *refuse, exit_code=3)
    assert summary["status"] == "refused"
    assert not (output / "dataset_info.json").exists()
    message = summary["message"]
    assert "it has duplicates that the config refuses: " in message
    for key, words in zip(
        REFUSED,
        (
            "in another split",
            "8 groups of equal files have different labels",
            "5 groups of nearly equal pictures have different classes",
        ),
        strict=True,
    ):
        assert words in message
        assert f"--set duplicates.{key}=warn" in message
    (where,) = [
        line.removeprefix("all of them: ")
        for line in message.splitlines()
        if line.startswith("all of them: ")
    ]
    assert parquet.read_table(where).num_rows == 28
    # The shards are kept.
    summary = build(pictures, output, *warn)
    assert summary["resumed"]["images"] == 39


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        (("--set", "duplicates.near=0"), 8),
        (("--set", "image.verify=header"), 8),
        (("--set", "duplicates.find=none"), None),
    ],
)
def test_what_is_looked_for(
    settings: tuple[str, ...], groups: int | None, pictures: Path, tmp_path: Path
) -> None:
    refuse = ("--set", "duplicates.near_contradictions=refuse") if groups else ()
    found = build(pictures, tmp_path, *settings, *refuse)["duplicates"]
    assert (found and (found["groups"], found["near"])) == (groups and (groups, 0))
    assert not (found and found["near_contradictions"])
    assert (tmp_path / "duplicates.parquet").exists() == (groups is not None)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    assert ("duplicates" in manifest) == (groups is not None)


# Excluding what was found


@pytest.fixture(scope="module")
def listed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The list of duplicates, out of the dataset's folder."""
    path = tmp_path_factory.mktemp("listed") / "duplicates.parquet"
    path.write_bytes((built / "duplicates.parquet").read_bytes())
    return path


def counts_of(summary: dict[str, Any], name: str) -> int:
    return sum(split[name].get("excluded_by_file", 0) for split in summary["splits"].values())


def test_all_but_one_of_each_group_are_left_out(
    pictures: Path, listed: Path, tmp_path: Path
) -> None:
    shards = ("--set", "output.num_shards=8")
    build(pictures, tmp_path / "old", *shards)
    words = ("--exclude", str(listed), "--set", "duplicates.leaks=refuse", *shards)
    summary = build(pictures, tmp_path / "new", *words, "--reuse", str(tmp_path / "old"))
    assert counts_of(summary, "excluded") == 14
    assert sum(split["images"] for split in summary["splits"].values()) == 39 - 14
    assert summary["duplicates"]["groups"] == 0
    assert summary["warnings"] == []
    # Shards that have lost nothing are copied.
    kept = {(row["split"], row["shard"]) for row in rows_of(tmp_path / "old") if not row["keep"]}
    assert summary["reuse"]["copied_shards"] == 16 - len(kept)
    build(pictures, tmp_path / "fresh", *words)
    assert read_dataset(tmp_path / "fresh") == read_dataset(tmp_path / "new")


def test_each_group_stays_in_one_split(pictures: Path, listed: Path, tmp_path: Path) -> None:
    for more in ((), ("--exact",)):
        output = tmp_path / f"out{len(more)}"
        summary = build(pictures, output, "--group-by", str(listed), *more)
        assert (summary["duplicates"]["groups"], summary["duplicates"]["leaks"]) == (14, 0)
        assert sum(split["images"] for split in summary["splits"].values()) == 39
        assert {split for split, counts in summary["splits"].items() if counts["images"]} == {
            "train",
            "validation",
        }


def test_a_group_of_several_sources_stays_in_one_split(pictures: Path, tmp_path: Path) -> None:
    source = {"format": "image-folder", "images": str(pictures)}
    config = {"source": [source, source], "fractions": {"train": 0.5, "validation": 0.5}}
    torn = build_config(config, folder=tmp_path, name="torn")
    groups = tmp_path / "groups.parquet"
    groups.write_bytes((torn.output / "duplicates.parquet").read_bytes())
    whole = build_config({**config, "group_by": str(groups)}, folder=tmp_path, name="whole")
    counts = [each.summary["duplicates"] for each in (torn, whole)]
    assert [each["images"] for each in counts] == [78, 78]
    assert counts[0]["leaks"] > 0
    assert counts[1]["leaks"] == 0


def test_single_keys_are_left_out_and_those_that_are_not_there_are_told(
    pictures: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("cats/0.jpg\nsource\tdogs/1.jpg\nother\tdogs/2.jpg\nnowhere.jpg\n")
    summary = build(pictures, tmp_path / "out", "--exclude", str(keys))
    assert counts_of(summary, "excluded") == 2
    assert "of the 4 images that the file in `exclude` names, 2 were found" in summary["warnings"]
    manifest = (tmp_path / "out" / "manifest.json").read_text()
    assert str(tmp_path) not in manifest
    # Another content is another plan.
    words = ("--exclude", str(keys), "--if-changed", "--overwrite")
    assert build(pictures, tmp_path / "out", *words)["current"]
    keys.write_text("cats/0.jpg\n")
    summary = build(pictures, tmp_path / "out", *words)
    assert not summary["current"]
    assert counts_of(summary, "excluded") == 1


def test_cropped_copies_are_found_on_request(tmp_path: Path) -> None:
    """A finished shard without hashes of crops is not taken for one with them."""
    images = tmp_path / "images"
    for name, picture in (
        ("whole", photograph(width=400, height=300, seed=5)),
        ("cropped", photograph(width=400, height=300, seed=5).crop((40, 30, 360, 270))),
        ("other", photograph(width=400, height=300, seed=6)),
    ):
        (images / name).mkdir(parents=True)
        (images / name / "a.jpg").write_bytes(save(picture, "JPEG", quality=80))
    output = tmp_path / "out"
    words = ("build", "image-folder", "--images", str(images), "--output", str(output), "--json")
    assert not json.loads(run(*words).stdout)["duplicates"]["groups"]
    again = (*words, "--set", "image.crop_hashes=true", "--reuse", str(output), "--overwrite")
    summary = json.loads(run(*again).stdout)
    found = summary["duplicates"]
    assert (found["groups"], found["cropped"], found["near_contradictions"]) == (1, 1, 0)
    assert summary["reuse"]["copied_shards"] == 0
    assert {row["key"]: row["cropped"] for row in rows_of(output)} == {
        "cropped/a.jpg": True,
        "whole/a.jpg": False,
    }
    page = tmp_path / "page.html"
    assert run("report", str(output), "--output", str(page)).exit_code == 0
    assert "cropped copy" in page.read_text()
