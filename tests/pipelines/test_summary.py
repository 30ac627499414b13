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
    ROWS_ALONE,
    DuplicateCounts,
    Resumed,
    Reuse,
    SplitOutcome,
    Status,
)
from shardbeam.transforms.storage.usage import StorageUsage
from tests.support.screens import check_screen

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
            {
                "status": Status.REFUSED,
                "splits": {"train": TRAIN},
                "message": "Too many: 2 of 3.\nSee rejects.",
                "rejects": "out/d/rejects",
            },
            "refused, nothing committed: out/d; Too many; the summary on stdout says why",
        ),
        (
            {"status": Status.FAILED, "splits": {"train": TRAIN}},
            "Too many.; the summary on stdout says why",
        ),
        # A name with a line end.
        ({"status": Status.FAILED, "splits": {}}, "Too many.\\nSee rejects."),
    ],
)
def test_the_last_line_is_short(
    changes: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = summary(**{"message": "Too many.\nSee rejects.", **changes})
    print_summary(run, as_json=False, exit_code=3)
    assert capsys.readouterr().err == f"shardbeam: error: {line}\n"


MANY = tuple(f"c{index}" for index in range(10))
USAGE = StorageUsage(requests={"list": 1, "get": 1_234}, bytes_received=5_000_000, bytes_sent=0)
SCENES = {
    "a build": summary(
        # A format of one's own may have a correction of its own.
        splits={"train": TRAIN, "test": msgspec.structs.replace(TEST, corrections={"mine": 1})},
        rejects="out/d/rejects",
        corrections="out/d/corrections",
        warnings=("W.",),
        notes=("N.",),
    ),
    "a plan": summary(status=Status.APPROVED, num_classes=1, classes=MANY[:1]),
    "refused": summary(
        status=Status.REFUSED, message="Too many.\nSee rejects.", num_classes=3, classes=MANY[:3]
    ),
    "failed": summary(
        status=Status.FAILED, message="Too many.\nSee rejects.", num_classes=1_230, classes=MANY
    ),
    "without splits": summary(status=Status.FAILED, splits={}, message="a.json: cut off"),
    "nothing done": summary(current=True),
    "reused": summary(
        reuse=Reuse(previous="out/c", copied_shards=4, copied_images=1000, unread_images=1002)
    ),
    "nothing reused": summary(reuse=Reuse(previous="out/c")),
    "reused, with damage": summary(reuse=Reuse(previous="out/c", damaged_shards=2)),
    "resumed": summary(resumed=Resumed(shards=1, examples=1_200, images=1000)),
    "no duplicates": summary(duplicates=DuplicateCounts(near=3)),
    "no equal files": summary(duplicates=DuplicateCounts()),
    "equal files": summary(duplicates=DuplicateCounts(groups=1, images=2, contradictions=1)),
    "duplicates": summary(
        duplicates=DuplicateCounts(
            groups=2_000,
            images=5_000,
            leaks=3,
            contradictions=4,
            near_contradictions=5,
            near=2,
            crowded=9,
            unlisted=7,
        )
    ),
    "object storage": summary(storage=USAGE),
    # fsspec's requests are not counted, but their repetitions are.
    "repeated": summary(storage=msgspec.structs.replace(USAGE, requests={}, repeated=2)),
    "throttled": summary(
        storage=msgspec.structs.replace(USAGE, repeated=2_000, throttled=1_000, throttled_s=9)
    ),
}


@pytest.mark.parametrize("columns", [60, 80])
def test_what_people_read(columns: int) -> None:
    layout = Layout(columns=columns, styled=False)
    shown = "".join(f"--- {name}\n{render_text(it, layout=layout)}" for name, it in SCENES.items())
    check_screen(f"summary_{columns}", shown)


def test_what_programs_read() -> None:
    check_screen(
        "summary_json",
        "".join(f"--- {name}\n{render_json(it)}" for name, it in SCENES.items()),
    )


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
    assert render_text(summary(splits={name: TRAIN})).count(name) == 5


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


def test_the_summary_of_rows_alone_begins_with_that() -> None:
    text = render_text(summary(splits={"train": TRAIN}, notes=(ROWS_ALONE, "a")))
    assert text.startswith("rows without images\n\nsplit ")
    assert text.count(ROWS_ALONE) == 1
