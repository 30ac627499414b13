"""The summary, for people and for programs."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.pipelines.cli.summary import print_summary, render_json, render_text
from shardbeam.pipelines.cli.tables import Layout, make_table, name_text, render_table
from shardbeam.pipelines.result import BuildResult
from shardbeam.transforms.dataset.outcome import (
    DuplicateCounts,
    Resumed,
    Reuse,
    SplitOutcome,
    Status,
)
from shardbeam.transforms.storage.usage import StorageUsage

TRAIN = SplitOutcome(
    listed=1003,
    images=1000,
    examples=1000,
    shards=4,
    num_bytes=600_000_000,
    unannotated=7,
    rejected={"missing_image": 1, "zero_byte": 2},
    unlisted=1,
    excluded={"hidden_file": 1},
    corrections={"box_clipped": 12},
)
TEST = SplitOutcome(listed=10, images=10, examples=10, shards=1, num_bytes=1_000)


RUN = BuildResult(
    status=Status.COMMITTED,
    splits={"train": TRAIN, "test": TEST},
    output="out/d",
    wall_time_s=2.0,
)


def summary(**changes: Any) -> BuildResult:  # noqa: ANN401  # Fields of a result.
    return msgspec.structs.replace(RUN, **changes)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"status": Status.REFUSED, "splits": {"train": TRAIN}},
            "refused, nothing committed: out/d; Too many.; the summary on stdout says more",
        ),
        (
            {"status": Status.REFUSED, "splits": {"train": TRAIN}, "rejects": "out/d/rejects"},
            "refused, nothing committed: out/d; Too many.; the summary on stdout says more; "
            "rejects: out/d/rejects",
        ),
        (
            {"status": Status.FAILED, "splits": {"train": TRAIN}},
            "Too many.; the summary on stdout says more",
        ),
        # A name with a line end.
        ({"status": Status.FAILED, "splits": {}}, "Too many.\\nSee rejects."),
    ],
)
def test_the_last_line_is_short(
    changes: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = summary(message="Too many.\nSee rejects.", **changes)
    print_summary(run, as_json=False, exit_code=3)
    assert capsys.readouterr().err == f"shardbeam: error: {line}\n"


def test_a_build_as_a_table() -> None:
    # A format of one's own may have a correction of its own.
    test = msgspec.structs.replace(TEST, corrections={"mine": 1})
    run = summary(
        splits={"train": TRAIN, "test": test},
        rejects="out/d/rejects",
        warnings=("W.",),
        notes=("N.",),
    )
    assert render_text(run) == (
        "split  examples  shards     bytes  rejected  excluded  corrections\n"
        "train     1,000       4  600.0 MB         3         1           12\n"
        "test         10       1    1.0 kB         0         0            1\n"
        "total     1,010       5  600.0 MB         3         1           13\n"
        "\n"
        "split  what       why                 count\n"
        "train  rejected   missing_image     1 input\n"
        "train  rejected   zero_byte        2 inputs\n"
        "train  excluded   hidden_file       1 input\n"
        "train  corrected  box_clipped    12 objects\n"
        "test   corrected  mine              1 image\n"
        "\n"
        "committed: out/d\n"
        "rejects: out/d/rejects\n"
        "7 of 1,002 images of train have no annotations and are written as negatives\n"
        "N.\n"
        "warning: W.\n"
        "wall time: 2.0 s, 505 images/s\n"
    )


def test_a_plan_as_a_table() -> None:
    text = render_text(summary(status=Status.APPROVED))
    assert text.startswith(
        "split  examples     bytes  shards  missing  unannotated  rejects so far\n"
        "train     1,000  600.0 MB       4        1            7               3\n"
    )
    assert "\nplan only, nothing written: out/d\n" in text
    assert text.endswith("\nwall time: 2.0 s\n")


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (Status.REFUSED, "refused, nothing committed: out/d\nToo many.\nSee rejects.\n"),
        (Status.FAILED, "failed, nothing committed: out/d\nToo many.\nSee rejects.\n"),
    ],
)
def test_what_went_wrong(status: Status, line: str) -> None:
    assert line in render_text(summary(status=status, message="Too many.\nSee rejects."))


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (1, "1 class: c0\n"),
        (3, "3 classes: c0, c1, c2\n"),
        (1_230, "1,230 classes: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 1,220 more\n"),
    ],
)
@pytest.mark.parametrize("status", [Status.APPROVED, Status.COMMITTED, Status.REFUSED])
def test_classes_are_named(number: int, line: str, status: Status) -> None:
    classes = tuple(f"c{index}" for index in range(min(10, number)))
    run = summary(status=status, num_classes=number, classes=classes)

    assert f"\n{line}" in render_text(run)
    fields = json.loads(render_json(run))
    assert (fields["num_classes"], fields["classes"]) == (number, [*classes])


def test_without_splits_there_is_no_table() -> None:
    failed = summary(status=Status.FAILED, splits={}, message="a.json: cut off")
    assert render_text(failed) == (
        "failed, nothing committed: out/d\na.json: cut off\nwall time: 2.0 s, 0 images/s\n"
    )
    assert json.loads(render_json(failed))["splits"] == {}


def test_nothing_done_has_no_speed() -> None:
    text = render_text(msgspec.structs.replace(RUN, current=True))
    assert "unchanged: out/d\n" in text
    assert text.endswith("0 images/s\n")


def test_what_was_copied_is_told_and_has_no_speed() -> None:
    reuse = Reuse(previous="out/c", copied_shards=4, copied_images=1000, unread_images=1002)
    text = render_text(summary(reuse=reuse))
    assert "\nreused: 4 of 5 shards copied from out/c, 1,002 images not read\n" in text
    assert text.endswith("\nwall time: 2.0 s, 5 images/s\n")
    assert json.loads(render_json(summary(reuse=reuse)))["reuse"] == {
        "previous": "out/c",
        "copied_shards": 4,
        "copied_images": 1000,
        "unread_images": 1002,
        "damaged_shards": 0,
    }
    assert json.loads(render_json(RUN))["reuse"] is None
    assert "reused" not in render_text(RUN)


def test_what_was_resumed_is_told_and_has_no_speed() -> None:
    resumed = Resumed(shards=1, examples=1_200, images=1000)
    text = render_text(summary(resumed=resumed))
    assert "\nresumed: 1 of 5 shards with 1,200 examples, written by an earlier run\n" in text
    assert text.endswith("\nwall time: 2.0 s, 5 images/s\n")
    assert json.loads(render_json(summary(resumed=resumed)))["resumed"] == {
        "shards": 1,
        "examples": 1_200,
        "images": 1000,
    }
    assert "resumed" not in render_text(RUN)


@pytest.mark.parametrize(
    ("counts", "lines"),
    [
        (DuplicateCounts(near=3), ["duplicates: no equal or nearly equal pictures"]),
        (
            DuplicateCounts(),
            [
                "duplicates: no equal files (nearly equal pictures are found with image.verify: "
                "decode and duplicates.near)"
            ],
        ),
        (
            DuplicateCounts(groups=1, images=2, contradictions=1),
            [
                "duplicates: 1 group of 2 equal files, 1 with different labels (nearly equal "
                "pictures are found with image.verify: decode and duplicates.near)"
            ],
        ),
        (
            DuplicateCounts(
                groups=2_000,
                images=5_000,
                leaks=3,
                contradictions=4,
                near_contradictions=5,
                near=2,
                crowded=9,
                unlisted=7,
            ),
            [
                "duplicates: 2,000 groups of 5,000 equal or nearly equal pictures, 3 in several "
                "splits, 4 with different labels of equal files, 5 with different classes of "
                "nearly equal ones",
                "9 pictures each look roughly like more than a thousand others, and were not "
                "compared with all of them",
                "duplicates.parquet has no room for 7 more images",
            ],
        ),
    ],
)
def test_duplicates_are_told(counts: DuplicateCounts, lines: list[str]) -> None:
    text = render_text(summary(duplicates=counts))
    for line in lines:
        assert f"\n{line}\n" in text
    assert json.loads(render_json(summary(duplicates=counts)))["duplicates"] == (
        msgspec.to_builtins(counts)
    )
    assert "duplicates" not in render_text(RUN)


def test_why_little_was_copied() -> None:
    none = render_text(summary(reuse=Reuse(previous="out/c")))
    assert (
        "reused: 0 of 5 shards copied from out/c, 0 images not read\nno shard could be copied: "
        in none
    )
    assert "output.num_shards fixes the number\n" in none
    damaged = render_text(summary(reuse=Reuse(previous="out/c", damaged_shards=2)))
    assert "\nshards damaged or missing there, and written again: 2\n" in damaged
    assert "output.num_shards" not in damaged


def test_requests_to_object_storage_are_told() -> None:
    usage = StorageUsage(requests={"list": 1, "get": 1_234}, bytes_received=5_000_000, bytes_sent=0)
    line = "1 list, 1,234 get; 5.0 MB received, 0 bytes sent\n"
    assert f"\nobject storage: {line}" in render_text(msgspec.structs.replace(RUN, storage=usage))
    assert "object storage" not in render_text(RUN)
    for fields, line in (
        # fsspec's requests are not counted, but their repetitions are.
        ({"requests": {}, "repeated": 2}, "2 repeated"),
        (
            {"requests": {"get": 1}, "repeated": 2_000, "throttled": 1_000, "throttled_s": 9},
            "1 get; 5.0 MB received, 0 bytes sent; 2,000 repeated, 1,000 of them because the "
            "storage wanted fewer requests (9 s of waiting)",
        ),
    ):
        repeated = msgspec.structs.replace(usage, **fields)
        assert f"\nobject storage: {line}\n" in render_text(
            msgspec.structs.replace(RUN, storage=repeated)
        )
    assert json.loads(render_json(msgspec.structs.replace(RUN, storage=usage)))["storage"] == {
        "requests": {"list": 1, "get": 1_234},
        "bytes_received": 5_000_000,
        "bytes_sent": 0,
        "repeated": 0,
        "throttled": 0,
        "throttled_s": 0,
    }


def test_a_narrow_terminal_gets_a_column_a_split() -> None:
    plan = summary(status=Status.APPROVED)
    narrow = render_text(plan, layout=Layout(columns=60, styled=False))
    assert [" ".join(line.split()) for line in narrow.splitlines()[:7]] == [
        "split train test total",
        "examples 1,000 10 1,010",
        "bytes 600.0 MB 1.0 kB 600.0 MB",
        "shards 4 1 5",
        "missing 1 0 1",
        "unannotated 7 0 7",
        "rejects so far 3 0 3",
    ]
    tables, _, _ = narrow.partition("plan only")
    assert max(map(len, tables.splitlines())) <= 60


def test_json_says_all() -> None:
    folders = {"rejects": "out/d/rejects", "corrections": "out/d/corrections"}
    value = json.loads(render_json(summary(message="m", **folders)))
    assert value == {
        "status": "committed",
        "exit_code": 0,
        "current": False,
        "output": "out/d",
        "latest": "",
        "replaced": "",
        "splits": {
            "train": {**msgspec.to_builtins(TRAIN), "reject_ratio": 3 / 1003},
            "test": {**msgspec.to_builtins(TEST), "reject_ratio": 0.0},
        },
        "sources": {},
        "rejects": "out/d/rejects",
        "corrections": "out/d/corrections",
        "wall_time_s": 2.0,
        "memory_bytes": 0,
        "images_per_s": 505.0,
        "message": "m",
        "warnings": [],
        "notes": [],
        "num_classes": 0,
        "classes": [],
        "storage": msgspec.to_builtins(StorageUsage()),
        "reuse": None,
        "resumed": {"shards": 0, "examples": 0, "images": 0},
        "duplicates": None,
        "findings": [],
    }


def test_json_is_one_line_of_ascii() -> None:
    text = render_json(summary(message="ü\n\udcff\x1b"))
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text)["message"] == "ü\n\udcff\x1b"


def test_names_are_neither_markup_nor_commands_to_the_terminal() -> None:
    code = "[red]x[/red]\x1b[2J\udcff"
    told = summary(splits={"[b]train": SplitOutcome(rejected={code: 1})}, message=code)
    text = render_text(
        msgspec.structs.replace(told, output="o\x07"), layout=Layout(columns=80, styled=True)
    )
    assert "[b]train" in text
    assert text.count("[red]x[/red]\\x1b[2J\\udcff") == 2
    assert "committed: o\\x07" in text


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_nothing_is_cut_on_a_narrow_terminal(columns: int) -> None:
    name = "a_rather_long_name_" * 5
    text = render_text(summary(splits={name: TRAIN}), layout=Layout(columns=columns, styled=False))
    letters = "".join(text.split())
    assert "…" not in letters
    # Folded over lines, all of it is there: twice its letters, for two tables.
    assert letters.count("_") >= 2 * name.count("_")


_WORDS = st.lists(st.text("ab_", min_size=1, max_size=40), min_size=1, max_size=6)


@given(
    rows=st.lists(st.tuples(_WORDS, _WORDS, st.integers(0, 10**15)), min_size=1, max_size=3),
    columns=st.sampled_from([60, 80]),
)
def test_no_word_and_no_number_of_a_table_is_broken(
    rows: list[tuple[list[str], list[str], int]], columns: int
) -> None:
    table = make_table("split", "class", numbers=["objects in validation"])
    for first, second, number in rows:
        table.add_row(name_text(" ".join(first)), name_text(" ".join(second)), f"{number:,}")
    text = render_table(table, layout=Layout(columns=columns, styled=False))
    assert max(map(len, text.splitlines())) <= columns
    words = text.split()
    for first, second, number in rows:
        assert {*first, *second, f"{number:,}"} <= {*words}


def test_a_wide_name_is_on_one_line_where_nothing_limits_the_width() -> None:
    name = "x" * 500
    assert render_text(summary(splits={name: TRAIN})).count(name) == 6


def test_stdout_that_is_no_terminal_gets_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(RUN, as_json=False)
    assert capsys.readouterr().out == render_text(RUN)
    print_summary(RUN, as_json=True)
    assert capsys.readouterr().out == render_json(RUN)


def test_stdout_of_another_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    print_summary(summary(message="臉書"), as_json=False)
    stdout.seek(0)
    assert "\\u81c9\\u66f8\n" in stdout.read()
