"""Findings of a whole build: what was planted is found, shown, counted again, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.builds import Json, build_config
from tests.support.dataset import run
from tests.support.planted import KINDS, write_planted


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return write_planted(tmp_path_factory.mktemp("findings"))


def show(*words: object) -> str:
    shown = run("show", *map(str, words))
    assert shown.exit_code == 0, shown.stderr
    return shown.stdout


def test_what_was_planted_is_found(source: Json, tmp_path: Path) -> None:
    built = build_config({"splits": {"train": source}}, folder=tmp_path)
    assert built.exit_code == 0, built.stderr

    found = json.loads(show(built.output, "--findings", "--json"))["findings"]
    assert {each["key"]: each["kind"] for each in found} == KINDS
    assert len(found) == len(KINDS)
    kinds = {each["kind"]: each for each in built.summary["findings"]}
    assert set(kinds) == set(KINDS.values())
    assert kinds["same_box"]["objects"] == {"cat + dog": 1}
    assert kinds["thin_box"]["images"] == 1

    table = show(built.output, "--findings", "thin_box")
    assert table.startswith("thin_box\na box more than 20 times as long as wide")
    assert "thin.jpg" in table
    assert "tiny.jpg" not in table
    assert show(built.output, "--findings", "dark_picture", "--all") == "dark.jpg\n"

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
    assert kinds == {*KINDS.values()} - {"duplicate_box"}
    found = json.loads(show(built.output, "--findings", "--json"))["findings"]
    assert {each["kind"] for each in found} == kinds
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
