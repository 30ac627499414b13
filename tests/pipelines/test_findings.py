"""Findings of a whole build: what was planted is found, shown, counted again, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.dataset.findings import OF_SIMILAR_PICTURES
from tests.support.builds import Json, build_config, write_coco
from tests.support.dataset import run
from tests.support.planted import FLAT, KINDS, PLANTED, write_planted
from tests.support.tfrecords import make_example, write_tfrecord

# What is worth a look in the dataset as a whole.
CLASSES = {"similar_names": "'Dog' and 'dog' may be one class"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return write_planted(tmp_path_factory.mktemp("findings"))


def show(*words: object) -> str:
    shown = run("show", *map(str, words), exit_code=0)
    return shown.stdout


def test_what_was_planted_is_found(source: Json, tmp_path: Path) -> None:
    built = build_config({"splits": {"train": source}}, folder=tmp_path)

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
    # A class of no object, to be found in the dataset as a whole.
    annotations = json.loads(Path(source["annotations"][0]).read_text())
    annotations["categories"].append({"id": 4, "name": "emu"})
    more = {**source, "annotations": [str(write_coco(tmp_path / "b.json", annotations))]}
    kinds = ("duplicate_box", "unused_class", "unequal_objects")
    expect = {"max_findings": dict.fromkeys(kinds, 0)}
    config: Json = {"splits": {"train": more}, "expect": expect}
    message = build_config(config, folder=tmp_path, exit_code=3).summary["message"]
    for kind in kinds:
        assert f"expect.max_findings: {kind}: expected at most 0, found" in message
    assert "split 'train': expect.max_findings: duplicate_box: expected at most 0, found 1" in (
        message
    )

    config = {"splits": {"train": source}, "expect": {"max_findings": {"duplicate_box": 0}}}

    config["findings"] = {"ignore": ["duplicate_box"]}
    built = build_config(config, folder=tmp_path)
    found_kinds = {each["kind"] for each in built.summary["findings"]}
    assert found_kinds == {*KINDS.values(), *CLASSES} - {"duplicate_box"}
    found = json.loads(show(built.output, "--findings", "--json"))["findings"]
    assert {each["kind"] for each in found} == found_kinds - {*CLASSES}
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
    stats = json.loads(run("stats", str(built.output), "--json").stdout)
    again = json.loads(run("stats", str(built.output), "--json", "--recount").stdout)
    assert again == stats
    assert stats["splits"]["train"]["images_by_finding"]["dark_picture"] == 1


def write_others(folder: Path) -> Path:
    """Writes Examples of another program: the planted boxes, and ordinary ones."""
    folder.mkdir()
    planted = [*PLANTED.items(), *[(f"{n}.jpg", [("cat", [30.0, 30, 90, 80])]) for n in range(10)]]
    records = []
    for key, boxes in [*planted, ("none.jpg", [])]:
        sides = [[x / 320, y / 240, (x + w) / 320, (y + h) / 240] for _, (x, y, w, h) in boxes]
        columns = zip(*sides, strict=True) if sides else [()] * 4
        names = ("xmin", "ymin", "xmax", "ymax")
        records.append(
            make_example(
                {
                    "image/filename": f"\x1b[2J{key}".encode(),
                    "image/width": 320,
                    "image/height": 240,
                    "image/object/class/text": [label.encode() for label, _ in boxes],
                    **{
                        f"image/object/bbox/{name}": list(column)
                        for name, column in zip(names, columns, strict=True)
                    },
                }
            )
        )
    write_tfrecord(folder / "a.tfrecord", *records[:9])
    write_tfrecord(folder / "b.tfrecord", *records[9:])
    return folder


def test_findings_of_other_programs_files_are_in_their_index(tmp_path: Path) -> None:
    others, index = write_others(tmp_path / "others"), tmp_path / "index"
    assert run("index", str(others), "--output", str(index)).exit_code == 0
    found = json.loads(show(others, "--findings", "--json", "--index", index))["findings"]
    # No picture is there to be looked at or compared, and one image of two has no objects.
    assert {(each["key"], each["kind"]) for each in found} == {
        (f"\x1b[2J{key}", kind)
        for key, kind in KINDS.items()
        if key not in FLAT and kind not in OF_SIMILAR_PICTURES
    }
    shown = show(others, "--findings", "tiny_box", "--all", "--index", index)
    assert shown == "\\x1b[2Jtiny.jpg\n"
    # Also of one file, and of what stats counts.
    shown = show(others / "a.tfrecord", "--findings", "tiny_box", "--index", index)
    assert r"\x1b[2Jtiny.jpg" in shown
    assert "\x1b" not in shown


def test_programs_get_all_findings_and_people_the_strongest(tmp_path: Path) -> None:
    box = {"xmin": 0.0, "xmax": 0.95, "ymin": 0.0, "ymax": 1.0}
    records = [
        make_example(
            {
                "image/filename": f"{number}.jpg".encode(),
                "image/width": 320,
                "image/height": 240,
                **{f"image/object/bbox/{name}": [side] for name, side in box.items()},
            }
        )
        for number in range(18)
    ]
    path, index = write_tfrecord(tmp_path / "a.tfrecord", *records), tmp_path / "index"
    assert run("index", str(path), "--output", str(index)).exit_code == 0
    words = (path, "--findings", "large_box", "--index", index)
    assert len(json.loads(show(*words, "--json"))["findings"]) == 18
    assert len(json.loads(show(*words, "--json", "--limit", 3))["findings"]) == 3
    assert show(*words).count(".jpg") == 10


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "the index of a shard is missing"),
        (lambda path: without_findings(path), "without findings; make it again"),
        (lambda path: path.write_bytes(path.with_name("b.tfrecord.parquet").read_bytes()), "fit"),
    ],
)
def test_a_separate_index_without_findings_is_refused(
    damage: Callable[[Path], None], problem: str, tmp_path: Path
) -> None:
    others, index = write_others(tmp_path / "others"), tmp_path / "index"
    assert run("index", str(others), "--output", str(index)).exit_code == 0
    damage(index / "a.tfrecord.parquet")
    shown = run("show", str(others), "--findings", "--index", str(index), exit_code=1)
    assert shown.stderr.startswith(f"shardbeam: error: {index}/a.tfrecord.parquet: ")
    assert problem in shown.stderr


def without_findings(path: Path) -> None:
    """Rewrites an index as an older version would have written it."""
    table = parquet.read_table(path)
    place = table.schema.get_field_index("findings")
    column = pa.nulls(len(table), table.schema.field("findings").type)
    parquet.write_table(table.set_column(place, table.schema.field("findings"), column), path)
