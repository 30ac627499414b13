"""`shardbeam stats` on our datasets and on other files, whole and damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardbeam.pipelines.cli.tables import PLAIN
from shardbeam.pipelines.commands.stats import StatisticsReport, render_text
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.findings import KindFound
from tests.support.builds import Build, build
from tests.support.dataset import read_tree, run
from tests.support.image_makers import plain_jpeg
from tests.support.screens import check_screen
from tests.support.tfrecords import make_example, tfrecord


def stats(*words: str | Path) -> dict[str, Any]:
    stdout = run("stats", *map(str, words), "--json", exit_code=0).stdout
    report: dict[str, Any] = json.loads(stdout)
    return report


def stats_error(path: Path) -> str:
    return run("stats", str(path), exit_code=1).error


def words(shapes: Path, *, shards: int) -> list[str | Path]:
    return [
        *("coco", "--images", shapes / "images", "--name", "shapes"),
        *("--annotations", shapes / "annotations" / "instances.json"),
        *("--fractions", "train=0.7,validation=0.3", "--masks", "png"),
        *("--set", f"output.num_shards={{train: {shards}, validation: 1}}"),
        *("--set", "features.rename={image/object/class/text: names, image/width: w}"),
        *("--set", "features.drop=[image/object/class/label]"),
    ]


@pytest.fixture(scope="module")
def dataset(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(
        *words(shapes, shards=3),
        output=tmp_path_factory.mktemp("stats") / "out",
    )


def test_counting_again_gives_what_was_counted_while_writing(dataset: Build) -> None:
    written = stats(dataset.output)

    assert written == stats(dataset.output, "--recount")
    assert written["path"] == str(dataset.output)
    assert {name: split["examples"] for name, split in written["splits"].items()} == {
        name: split["examples"] for name, split in dataset.summary["splits"].items()
    }
    assert written["outcome"]["train"]["objects"] == written["splits"]["train"]["objects"] > 0


def test_a_dataset_without_statistics_is_counted(dataset: Build, tmp_path: Path) -> None:
    shutil.copytree(dataset.output, tmp_path / "old")
    (tmp_path / "old" / "statistics.json").unlink()

    assert stats(tmp_path / "old")["splits"] == stats(dataset.output)["splits"]


def test_files_of_others(tmp_path: Path) -> None:
    image = plain_jpeg((32, 24))
    boxes = {f"image/object/bbox/{side}": [0.25] for side in ("xmin", "ymin")}
    boxes |= {f"image/object/bbox/{side}": [0.75] for side in ("xmax", "ymax")}
    rows: dict[str, list[dict[str, object]]] = {
        "train": [
            {"image/encoded": [image], **boxes, "image/object/class/label": [7]},
            {"image/encoded": [image], "image/width": [b"no number"], "image/class/text": [b"cat"]},
        ],
        "test": [{"image/encoded": [b"no image"]}, {"else": [1.0]}],
    }
    for name, examples in rows.items():
        data = tfrecord(*map(make_example, examples))
        (tmp_path / f"{name}-00000-of-00001.tfrecord").write_bytes(data)

    found = stats(tmp_path)

    train, test = found["splits"]["train"], found["splits"]["test"]
    assert train["formats"] == {"jpeg": 2}
    assert train["width_range"] == [32, 32]
    assert train["height_range"] == [24, 24]
    assert train["images_by_class"] == {"7": 1, "cat": 1}
    assert train["objects_by_class"] == {"7": 1}
    assert train["relative_areas"] == {"200000": 1}
    assert train["object_areas"] == {"small": 1}
    assert (test["examples"], test["images"], test["unannotated"]) == (2, 1, 1)
    assert found["outcome"] == {}


def test_damage_is_one_line(dataset: Build, tmp_path: Path) -> None:
    (shard,) = dataset.output.glob("*-train*-00001-of-*")
    cut = tmp_path / "cut.tfrecord"
    cut.write_bytes(shard.read_bytes()[:-1])
    assert stats_error(cut).startswith(f"{cut}: byte ")

    other = tmp_path / "other.tfrecord"
    other.write_bytes(tfrecord(b"no example"))
    assert "is not a tf.train.Example" in stats_error(other)

    (tmp_path / "empty").mkdir()
    assert stats_error(tmp_path / "empty") == f"{tmp_path}/empty: the folder is empty"


@pytest.mark.parametrize("command", ["stats", "verify"])
def test_a_path_that_is_no_text_is_one_line(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "b\udcff"
    folder.mkdir()
    (folder / "a.tfrecord").write_bytes(tfrecord(make_example({"n": 1})))
    problem = "its path, or a shard's name, is not valid UTF-8; rename it"
    assert run(command, str(folder), exit_code=1).error == f"{tmp_path}/b\\udcff: {problem}"


def test_a_changed_manifest_tells_no_keys(dataset: Build, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(dataset.output, folder)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["config"]["features"] = {"rename": {"image/object/class/text": 3}}
    (folder / "manifest.json").write_text(json.dumps(manifest))

    found = stats(folder, "--recount")["splits"]["train"]
    assert set(found["objects_by_class"]) == {""}


def test_the_report_is_what_is_printed(dataset: Build, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    printed = stats(dataset.output, "--report", report)

    made_by = "Shardbeam result of stats (shapes)"
    assert json.loads(report.read_bytes()) == {"made_by": made_by, **printed}
    assert set(read_tree(tmp_path)) == {"report.json"}


def test_tables() -> None:
    train = Statistics(
        examples=3,
        num_bytes=2000,
        images=3,
        formats={"png": 1, "jpeg": 2},
        width_range=(32, 100),
        widths={"32": 1, "96": 2},
        relative_areas={"500000": 2, "100": 1},
        images_by_class={"cat": 2, "\x1b[31mred": 1},
        objects_by_class={"cat": 5, "\x1b[31mred": 1},
        objects=6,
        objects_per_image={"1": 1, "4": 1, "6": 1},
        object_areas={"large": 2, "small": 4},
        count_of_pairs={"\x1b[31mred": {"cat": 1}},
        keypoints={"nose": {"2": 1}},
        areas={"13": 4, "1024": 2},
        facets={"weather": {"\x1b[0m": 1, "[b]rain": 2}},
    )
    report = StatisticsReport(
        path="x",
        splits={"train": train, "[bold]": Statistics()},
        findings=(KindFound(kind="rare_class", text="a finding"),),
    )

    check_screen("stats", render_text(report, PLAIN))


def test_a_table_says_how_much_it_leaves_out() -> None:
    names = [f"class{number:02}" for number in range(53)]
    split = Statistics(
        images_by_class=dict.fromkeys(names, 1),
        pixels_by_class=dict.fromkeys(names, 4),
        count_of_pairs={"a": dict.fromkeys(names[:12], 1)},
        formats=dict.fromkeys(names, 1),
        keypoints={name: {"2": 1} for name in names},
    )
    findings = tuple(KindFound(kind="rare_class", text=f"no {number}") for number in range(53))
    report = StatisticsReport(path="set", splits={"train": split}, findings=findings)
    text = render_text(report)
    assert text.count("... and 3 more (--json has all)") == 5
    assert text.count("worth a look") == 50
    assert text.count("... and 2 more (--json has all)") == 1
    assert text.count("class49") == 4
    assert "class50" not in text
