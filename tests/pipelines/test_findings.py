"""Findings of a whole build: what was planted is found, shown, counted again, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.builds import Json, build_config, write_coco
from tests.support.dataset import run
from tests.support.image_makers import photograph, save

# {image: the boxes that are planted}; a few pictures are dark, bright or flat.
PLANTED: dict[str, list[tuple[str, list[float]]]] = {
    "large.jpg": [("cat", [0, 0, 320, 235])],
    "tiny.jpg": [("cat", [20, 20, 3, 4])],
    "thin.jpg": [("cat", [10, 10, 250, 9])],
    "twice.jpg": [("cat", [10, 10, 100, 100]), ("cat", [10, 10, 100, 101])],
    "both.jpg": [("cat", [10, 10, 100, 100]), ("dog", [10, 10, 101, 100])],
    "dark.jpg": [("cat", [10, 10, 100, 100])],
    "bright.jpg": [("cat", [10, 10, 100, 100])],
    "flat.jpg": [("cat", [10, 10, 100, 100])],
    # The picture of 0.jpg, of lower quality.
    "again.jpg": [("Dog", [30, 30, 90, 80])],
}
KINDS = {
    "large.jpg": "large_box",
    "tiny.jpg": "tiny_box",
    "thin.jpg": "thin_box",
    "twice.jpg": "duplicate_box",
    "both.jpg": "same_box",
    "dark.jpg": "dark_picture",
    "bright.jpg": "bright_picture",
    "flat.jpg": "low_contrast",
    "again.jpg": "same_picture",
    "0.jpg": "same_picture",
}
# What is worth a look in the dataset as a whole.
CLASSES = {"similar_names": "'Dog' and 'dog' may be one class"}
FLAT = {"dark.jpg": (0, 55), "bright.jpg": (205, 255), "flat.jpg": (120, 140)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Json:
    folder = tmp_path_factory.mktemp("findings")
    (folder / "images").mkdir()
    ordinary = {f"{number}.jpg": [("cat", [30.0, 30.0, 90.0, 80.0])] for number in range(10)}
    names = [*PLANTED, *ordinary]
    for number, name in enumerate(names):
        seed, quality = (names.index("0.jpg"), 50) if name == "again.jpg" else (number, 95)
        picture = photograph(width=320, height=240, seed=seed)
        if name in FLAT:
            low, high = FLAT[name]
            levels = np.random.default_rng(0).integers(low, high, (60, 80), dtype=np.uint8)
            picture = Image.fromarray(levels.repeat(4, axis=0).repeat(4, axis=1)).convert("RGB")
        (folder / "images" / name).write_bytes(save(picture, "JPEG", quality=quality))
    ids = {"cat": 1, "dog": 2, "Dog": 3}
    objects = [
        {"image_id": number, "category_id": ids[label], "bbox": box}
        for number, boxes in enumerate([*PLANTED.values(), *ordinary.values()])
        for label, box in boxes
    ]
    annotations = write_coco(
        folder / "a.json",
        {
            "images": [
                {"id": number, "file_name": name, "width": 320, "height": 240}
                for number, name in enumerate(names)
            ],
            "annotations": [{"id": number, **each} for number, each in enumerate(objects)],
            "categories": [{"id": number, "name": name} for name, number in ids.items()],
        },
    )
    return {"format": "coco", "images": str(folder / "images"), "annotations": [str(annotations)]}


def show(*words: object) -> str:
    shown = run("show", *map(str, words))
    assert shown.exit_code == 0, shown.stderr
    return shown.stdout


def test_what_was_planted_is_found(source: Json, tmp_path: Path) -> None:
    built = build_config({"splits": {"train": source}}, folder=tmp_path)
    assert built.exit_code == 0, built.stderr

    shown = json.loads(show(built.output, "--findings", "--json"))
    found = shown["findings"]
    assert {each["key"]: each["kind"] for each in found} == KINDS
    assert len(found) == len(KINDS)
    assert {each["kind"]: each["text"] for each in shown["classes"]} == CLASSES
    kinds = {each["kind"]: each for each in built.summary["findings"]}
    assert set(kinds) == {*KINDS.values(), *CLASSES}
    assert kinds["same_box"]["objects"] == {"cat + dog": 1}
    assert kinds["thin_box"]["images"] == 1
    assert kinds["same_picture"]["images"] == 2

    lines = show(built.output, "--findings", "similar_names")
    assert lines == f"similar_names: {CLASSES['similar_names']}\n"
    table = show(built.output, "--findings", "thin_box")
    assert table.startswith("thin_box\na box more than 20 times as long as wide")
    assert "thin.jpg" in table
    assert "tiny.jpg" not in table
    assert show(built.output, "--findings", "dark_picture", "--all") == "dark.jpg\n"
    pair = {*show(built.output, "--findings", "same_picture", "--all").splitlines()}
    assert pair == {"0.jpg", "again.jpg"}

    stats = json.loads(run("stats", str(built.output), "--json").stdout)
    again = json.loads(run("stats", str(built.output), "--json", "--recount").stdout)
    assert again == stats
    assert {each["kind"] for each in stats["findings"]} >= set(KINDS.values())


def test_findings_may_be_ignored_or_refused(source: Json, tmp_path: Path) -> None:
    config: Json = {"splits": {"train": source}, "expect": {"max_findings": {"duplicate_box": 0}}}
    refused = build_config(config, folder=tmp_path)
    assert refused.exit_code == 3, refused.stderr
    assert (
        "split 'train': expect.max_findings: duplicate_box: expected at most 0, found 1"
        in (refused.summary["message"])
    )

    config["findings"] = {"ignore": ["duplicate_box"]}
    built = build_config(config, folder=tmp_path)
    assert built.exit_code == 0, built.stderr
    kinds = {each["kind"] for each in built.summary["findings"]}
    assert kinds == {*KINDS.values(), *CLASSES} - {"duplicate_box"}
    found = json.loads(show(built.output, "--findings", "--json"))["findings"]
    assert {each["kind"] for each in found} == kinds - {*CLASSES}
    # Who asks for a kind gets it.
    assert "twice.jpg" in show(built.output, "--findings", "duplicate_box")


def test_the_summary_names_the_three_largest(source: Json, tmp_path: Path) -> None:
    flags = ("--images", source["images"], "--annotations", *source["annotations"])
    output = str(tmp_path / "out")
    built = run("build", "coco", *flags, "--output", output)
    lines = [line for line in built.stdout.splitlines() if line.startswith("worth a look: ")]
    assert len(lines) == 3
    assert f"all findings: shardbeam show {output} --findings" in built.stdout


def test_an_image_with_an_example_for_each_object_counts_once(source: Json, tmp_path: Path) -> None:
    built = build_config(
        {"splits": {"train": source}, "example_per": "annotation"}, folder=tmp_path
    )
    assert built.exit_code == 0, built.stderr
    stats = json.loads(run("stats", str(built.output), "--json").stdout)
    again = json.loads(run("stats", str(built.output), "--json", "--recount").stdout)
    assert again == stats
    assert stats["splits"]["train"]["images_by_finding"]["dark_picture"] == 1


@pytest.mark.parametrize("kind", ["unused_class", "same_picture"])
def test_findings_of_the_whole_dataset_may_be_refused(
    kind: str, source: Json, tmp_path: Path
) -> None:
    annotations = json.loads(Path(source["annotations"][0]).read_text())
    annotations["categories"].append({"id": 4, "name": "emu"})
    changed = {**source, "annotations": [str(write_coco(tmp_path / "b.json", annotations))]}
    refused = build_config(
        {"splits": {"train": changed}, "expect": {"max_findings": {kind: 0}}}, folder=tmp_path
    )
    assert refused.exit_code == 3, refused.stderr
    assert f"expect.max_findings: {kind}: expected at most 0, found" in refused.summary["message"]


def test_what_is_not_looked_for_cannot_be_refused(source: Json, tmp_path: Path) -> None:
    for kind, settings in {
        "same_picture": {"duplicates": {"find": "none"}},
        "low_contrast": {"image": {"verify": "header"}},
    }.items():
        refused = build_config(
            {
                "splits": {"train": source},
                "expect": {"max_findings": {kind: 0}},
                **settings,
            },
            folder=tmp_path,
        )
        assert refused.exit_code == 2
        assert f"expect.max_findings.{kind}: it is found only with" in refused.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--findings", "--rejects"], "--findings: not together with --rejects"),
        (["--all"], "--all: only together with --findings"),
        (["--findings", "thin_boxes"], "did you mean thin_box?"),
        (["--findings", "--image", "1"], "--image: not together with --findings"),
    ],
)
def test_wrong_flags(words: list[str], problem: str, tmp_path: Path) -> None:
    shown = run("show", str(tmp_path), *words)
    assert shown.exit_code == 2
    assert problem in shown.stderr


def test_files_of_others_have_no_findings_yet(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    shown = run("show", str(tmp_path), "--findings")
    assert shown.exit_code == 1
    assert "says nothing about findings" in shown.stderr
