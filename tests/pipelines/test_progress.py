"""Progress: the lines with a simulated clock, and what commands show on a terminal and without."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pty
import re
import select
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from shardbeam.pipelines.cli import logging as cli_logging
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.cli.progress import (
    ProgressMonitor,
    Written,
    show_progress,
    watch_job,
)
from shardbeam.transforms.core.counters import ROWS, counters
from tests.support.dataset import COMMAND, coco_words, run
from tests.support.screens import check_screen
from tests.support.watching import WORKING, Steps, Terminal, show, watch

ALL = Written(shards_done=4, shards_total=4, images_done=9, images_total=9)


@pytest.fixture(autouse=True)
def nothing_counted() -> Iterator[None]:
    """Other tests have counted in this process, and this one should not be seen by them."""
    counters.begin()
    yield
    counters.begin()


# What is shown


def add(**numbers: int) -> Callable[[], None]:
    """Adds to counters; `x_total` adds to the total of `x`."""

    def step() -> None:
        for name, number in numbers.items():
            counter = getattr(counters, name.removesuffix("_total"))
            (counter.expect if name.endswith("_total") else counter.add)(number)

    return step


TOTALS = Written(shards_total=4, images_total=4000)
# {what is counted: steps, each of which changes counters or is what staging says}
SCENES: dict[str, list[Written | Callable[[], None]]] = {
    "COCO": [
        lambda: counters.begin(annotation_bytes=470_100_000),
        add(bundles_total=1, files=340_000),
        add(bundles=1),
        add(bundles_total=2, annotation_bytes=45_123_456, joined_total=118_287),
        # Between two bundles, the runner groups nothing.
        add(bundles=1, entries=30_000),
        add(bundles=1, annotation_bytes=1_430_000_000),
        lambda: None,
        add(cut=1),
        add(sampled=2),
        add(joined=40_000),
        add(sharded_total=9, sharded=8),
        TOTALS,
        WORKING,
        WORKING._replace(images_done=1100),
        WORKING._replace(images_done=3000, images_resumed=1890, shards_resumed=1, shards_done=3),
        WORKING._replace(images_done=4000, images_resumed=1890, shards_resumed=1, shards_done=4),
    ],
    "files beside images": [add(annotation_files_total=7, annotation_files=3, entries=4)],
    "a table": [
        lambda: counters.begin(noun=ROWS, annotation_bytes=2_500_000_000),
        add(annotation_bytes=1_250_000_000, entries=9),
        add(joined=5),
        add(sharded=5),
        WORKING,
        WORKING._replace(images_done=2000),
    ],
    # With {fingerprint} in the output, the images are listed twice.
    "two graphs": [add(files=9), counters.begin, add(files=2)],
    "finished datasets": [
        add(shard_bytes_total=3_000_000, shard_bytes=1_000_000),
        add(indexes_total=4, indexes=1),
        add(pictures=20),
        add(exported_total=9, exported=5),
    ],
    "a job": [lambda: None, TOTALS, WORKING],
}


def play(*, columns: int = 0, as_json: bool = False) -> str:
    """Shows all scenes, in each of which a step takes eleven seconds.

    Args:
        columns: The width of a terminal; 0 for none.
        as_json: Whether there is a JSON log.
    """
    shown = io.StringIO()
    console = Console(file=shown, width=columns or None)
    with (
        contextlib.redirect_stderr(shown),
        mock.patch.object(cli_logging, "_writes_json", as_json),
    ):
        for name, steps in SCENES.items():
            shown.write(f"--- {name}\n")
            counters.begin()
            now_s = 0.0
            monitor = ProgressMonitor(clock=lambda: now_s)  # noqa: B023
            monitor.ask_state = (lambda: "RUNNING") if name == "a job" else None
            # Only what Rich draws; nothing moves by itself.
            monitor._is_live = columns > 0
            for step in steps:
                now_s += 11
                if isinstance(step, Written):
                    monitor.read_written = lambda: step  # noqa: B023
                else:
                    step()
                monitor._show()
                if columns:
                    console.print(monitor._progress.get_renderable())
    return shown.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_terminal(columns: int) -> None:
    check_screen(f"progress_{columns}", play(columns=columns))


def test_a_log() -> None:
    check_screen("progress_log", play())


def test_a_json_log() -> None:
    lines = re.sub(r'"time": "[^"]*", ', "", play(as_json=True))
    check_screen("progress_json", lines)


def test_plain_lines_are_few_and_the_last_state_is_told() -> None:
    states = [
        Written(shards_done=n // 10, shards_total=4, images_done=n, images_total=40)
        for n in range(36)
    ]
    lines = watch(Steps(*states), io.StringIO()).splitlines()
    assert all(line.startswith("shardbeam: ") for line in lines)
    assert lines[0] == "shardbeam: writing: 9/40 images, 1 images/s, 0/4 shards"
    # 36 seconds at a line every ten, and one at the end.
    assert len(lines) == 4
    assert lines[-1].startswith("shardbeam: writing: 35/40 images, ")


def test_the_speed_is_that_of_the_last_half_minute() -> None:
    slow = [Written(shards_total=1, images_done=n, images_total=9000) for n in range(100)]
    fast = [Written(shards_total=1, images_done=100 * n, images_total=9000) for n in range(1, 41)]
    lines = watch(Steps(*slow, *fast), io.StringIO()).splitlines()
    assert ", 1 images/s, " in lines[8]
    assert ", 100 images/s, " in lines[13]


def test_the_time_before_the_first_image_does_not_count() -> None:
    """Workers start, and records are sorted into shards: that says nothing about images."""
    waiting = [Written(shards_total=1, images_total=9000)] * 1000
    working = [
        Written(shards_total=1, images_done=100 * n, images_total=9000) for n in range(1, 31)
    ]
    lines = watch(Steps(*waiting, *working), io.StringIO()).splitlines()
    assert [line for line in lines if "images/s" in line][:3] == [
        f"shardbeam: writing: {shown}, 0/1 shards"
        for shown in (
            "1,000/9,000 images, 100 images/s",
            "2,000/9,000 images, 100 images/s, ETA 0:01:10",
            "3,000/9,000 images, 100 images/s, ETA 0:01:00",
        )
    ]


def test_what_was_resumed_has_no_speed() -> None:
    steps = [
        WORKING._replace(images_done=1000 + 101 * n, images_resumed=1000 + 100 * n)
        for n in range(20)
    ]
    assert ", 1 images/s, " in watch(Steps(*steps), io.StringIO()).splitlines()[0]


@pytest.mark.parametrize(
    ("per_s", "first_s"),
    [
        # 1 % of 100,000 images comes later than ten seconds ...
        (50, 20),
        (1000, 10),
        # ... and after a minute anything is better than nothing.
        (1, 60),
    ],
)
def test_no_eta_from_the_first_images(per_s: int, first_s: int) -> None:
    states = [
        Written(shards_total=9, images_done=per_s * n, images_total=100_000) for n in range(70)
    ]
    etas = {
        line["images_done"] // per_s: line["eta_s"]
        for line in logged(watch(Steps(*states), io.StringIO(), as_json=True))
        if line["images_done"]
    }
    assert {second for second, eta_s in etas.items() if eta_s is not None} == {
        second for second in etas if second >= first_s
    }
    last = max(etas)
    assert last >= 60
    assert etas[last] == (100_000 - last * per_s) // per_s


def test_a_short_build_has_no_speed() -> None:
    """It was seen only after it had written everything."""
    nothing = Written()
    text = watch(Steps(nothing, ALL, ALL, ALL, seconds=0.3), io.StringIO())
    assert text == "shardbeam: committing: 9/9 images, 4/4 shards\n"
    half = ALL._replace(images_done=5, shards_done=1)
    text = watch(Steps(nothing, half), io.StringIO())
    assert text == "shardbeam: writing: 5/9 images, 1/4 shards\n"


def test_a_build_that_cleared_up_is_not_listing_again() -> None:
    counters.files.add(3)
    text = watch(Steps(WORKING, Written()), io.StringIO())
    assert text == "shardbeam: writing: 1,000/4,000 images, 1/4 shards\n"


def logged(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# The monitor


def test_staging_is_asked_no_more_often_than_it_should() -> None:
    """Each look into object storage is billed."""
    halves_of_a_second = itertools.count()
    asked_s: list[float] = []
    done = threading.Event()

    def clock() -> float:
        return next(halves_of_a_second) / 2

    def read() -> Written:
        asked_s.append(clock())
        if len(asked_s) == 4:
            done.set()
        return WORKING

    with show(io.StringIO(), clock=clock, every_s=5, read_written=read):
        assert done.wait(30)
    # The last one may be that of the end.
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(asked_s[:4]))


def test_a_command_too_short_to_tell_of_says_nothing() -> None:
    assert watch(Steps(Written()), io.StringIO()) == ""


def test_a_terminal_gets_a_live_line_that_goes_away() -> None:
    text = watch(Steps(Written(), WORKING, WORKING), Terminal())
    assert "starting" in text
    assert "1/4 shards" in text
    assert "\x1b[2K" in text
    assert "shardbeam:" not in text


def test_a_terminal_shows_the_time_after_a_step_is_done() -> None:
    """Rich stops the clock of a task that has reached its total, and the spinner, too."""
    frames = watch(Steps(*[ALL] * 50), Terminal()).split("\r")
    last = [frame for frame in frames if "committing" in frame][-1]
    assert any(spinner in last for spinner in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["plain", "terminal"])
def test_reading_may_fail(stream: io.StringIO) -> None:
    errors = [OSError("gone"), ValueError("half a file")]
    done = threading.Event()

    def read() -> Written:
        if errors:
            raise errors.pop()
        done.set()
        return WORKING

    with show(stream, read_written=read):
        assert done.wait(30)
    assert "1/4 shards" in stream.getvalue()


def test_a_write_may_fail() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    watch(Steps(WORKING, seconds=20), Broken())
    assert not watchers()


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_the_commands_own_error_gets_through() -> None:
    def fail() -> None:
        assert watchers()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), show_progress():
        fail()
    assert not watchers()


def test_a_result_ends_the_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress():
        assert watchers()
        write_stdout("a result\n")
        assert not watchers()
        # As by `verify --repair`.
        with show_progress():
            assert watchers()
    assert capsys.readouterr() == ("a result\n", "")


def test_nobody_needs_to_watch() -> None:
    """Programs call the library without the command."""
    watch_job(lambda: pytest.fail("asked"))


@pytest.fixture(scope="module")
def built(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built") / "out"
    assert run(*coco_words(shapes, output)).exit_code == 0
    return output


# What commands count


def counted(*names: str) -> dict[str, tuple[int, int]]:
    """What the last command in this process has counted, and the totals."""
    return {name: (getattr(counters, name).done, getattr(counters, name).total) for name in names}


def plan(*words: str) -> None:
    assert run("plan", *words).exit_code == 0


def test_a_coco_file(shapes: Path, tmp_path: Path) -> None:
    plan(*coco_words(shapes, tmp_path / "out")[1:])
    assert counters.bundles.done == counters.bundles.total > 0
    size_bytes = (shapes / "annotations" / "instances.json").stat().st_size
    # The separators of the file's blocks may be counted twice.
    assert size_bytes <= counters.annotation_bytes.done <= size_bytes + 10
    assert counters.annotation_bytes.total == size_bytes
    assert counted("files", "entries", "cut", "sampled", "joined") == {
        "files": (40, 0),
        "entries": (40, 0),
        "cut": (0, 0),
        "sampled": (0, 0),
        "joined": (40, 40),
    }


def test_passes_before_the_join_count_for_themselves(shapes: Path, tmp_path: Path) -> None:
    words = coco_words(shapes, tmp_path / "out")[1:]
    plan(*words, "--fractions=train=0.5,validation=0.5", "--set=exact=true", "--limit=7")
    assert counted("cut", "sampled", "joined") == {
        "cut": (40, 0),
        "sampled": (40, 0),
        "joined": (40, 40),
    }


def test_class_folders_need_no_join(shapes: Path, tmp_path: Path) -> None:
    folder = shapes / "class_folders"
    plan("image-folder", f"--images={folder}", f"--output={tmp_path}/out")
    files = sum(path.is_file() for path in folder.rglob("*"))
    assert counted("files", "joined") == {"files": (files, 0), "joined": (0, 0)}


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_tables_without_images(name: str, tmp_path: Path) -> None:
    rows = 600
    texts = {
        "csv": ["word,label", *(f"word {number},{number % 3}" for number in range(rows))],
        "jsonl": [json.dumps({"word": f"word {n}", "label": n % 3}) for n in range(rows)],
    }
    path = tmp_path / f"rows.{name}"
    path.write_text("\n".join(texts[name]) + "\n")
    plan(name, f"--manifest={path}", f"--output={tmp_path}/out")
    assert counters.noun == ROWS
    size_bytes = path.stat().st_size
    assert counted("annotation_bytes", "entries", "joined") == {
        "annotation_bytes": (size_bytes, size_bytes),
        "entries": (rows, 0),
        "joined": (rows, 0),
    }


def test_an_annotation_file_beside_each_image(shapes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "voc"
    for part in ("JPEGImages", "Annotations"):
        (folder / part).mkdir(parents=True)
    images = sorted((shapes / "images").iterdir())[:5]
    for image in images:
        (folder / "JPEGImages" / image.name).write_bytes(image.read_bytes())
        (folder / "Annotations" / f"{image.stem}.xml").write_text(
            "<annotation><size><width>640</width><height>480</height></size></annotation>"
        )
    plan("voc", f"--root={folder}", f"--output={tmp_path}/out", "--set=unannotated=keep")
    assert counted("files", "annotation_files", "entries", "joined") == {
        "files": (10, 0),
        "annotation_files": (5, 5),
        "entries": (5, 0),
        "joined": (5, 5),
    }


def test_a_build_finds_the_shard_of_each_image(shapes: Path, tmp_path: Path) -> None:
    assert run(*coco_words(shapes, tmp_path / "out")).exit_code == 0
    assert counted("sharded") == {"sharded": (40, 40)}


def test_commands_count_what_they_read(built: Path, tmp_path: Path) -> None:
    (shard,) = built.glob("*.tfrecord*")
    size_bytes = shard.stat().st_size
    for words in (["verify", str(built)], ["stats", str(built), "--recount"]):
        assert run(*words).exit_code == 0
        assert counted("shard_bytes") == {"shard_bytes": (size_bytes, size_bytes)}
    assert run("diff", str(built), str(built)).exit_code == 0
    assert counted("indexes") == {"indexes": (2, 2)}
    assert run("report", str(built), f"--output={tmp_path}/page.html").exit_code == 0
    assert counted("indexes", "pictures") == {"indexes": (1, 1), "pictures": (40, 40)}
    (built / "index").rename(tmp_path / "index")
    assert run("report", str(built), f"--output={tmp_path}/page.html").exit_code == 0
    (tmp_path / "index").rename(built / "index")
    assert counters.shard_bytes.total == size_bytes < counters.shard_bytes.done


def test_init_counts_files(tmp_path: Path, shapes: Path) -> None:
    folder = shapes / "class_folders"
    assert run("init", str(folder)).exit_code == 0
    assert counters.files.done >= sum(path.is_file() for path in folder.rglob("*"))


def test_sample_counts_pictures(tmp_path: Path) -> None:
    words = ["sample", "shapes", f"--output={tmp_path}/s", "--images=3", "--workers=1"]
    assert run(*words).exit_code == 0
    assert counted("pictures") == {"pictures": (3, 3)}


# Commands, on a terminal and without


class OnTerminal:
    """A command whose stderr is a terminal of 100 columns; its stdout is a pipe."""

    def __init__(self, *words: str, cwd: Path, **variables: str) -> None:
        master, slave = pty.openpty()
        environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color", **variables}
        self.process = subprocess.Popen(
            [COMMAND, *words],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        self._master = master

    def wait_for(self, text: str) -> None:
        while text not in self.shown:
            assert self._read(), self.shown

    def finish(self) -> bytes:
        """Waits for the end; returns what is on stdout."""
        while self._read():
            pass
        os.close(self._master)
        stdout, _ = self.process.communicate(timeout=60)
        return stdout

    def _read(self) -> bool:
        assert select.select([self._master], [], [], 60)[0], self.shown
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # Linux: no process has the terminal open any more.
            data = b""
        self.shown += data.decode(errors="replace")
        return bool(data)

    @property
    def left(self) -> str:
        """What is still to be seen at the end, as a terminal shows it."""
        lines = [""]
        row = column = 0
        for part in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", self.shown):
            if part == "\r":
                column = 0
            elif part == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif part.startswith("\x1b"):
                if part.endswith("A"):
                    row -= int(part[2:-1] or 1)
                elif part == "\x1b[2K":
                    lines[row] = ""
            else:
                lines[row] = (
                    f"{lines[row][:column]:{column}}{part}{lines[row][column + len(part) :]}"
                )
                column += len(part)
        return "\n".join(lines).strip()


# The other commands start in the same function, `main`.
@pytest.mark.parametrize("command", ["build", "init"])
def test_a_terminal_shows_a_command_from_its_start(
    command: str, shapes: Path, tmp_path: Path
) -> None:
    words = {
        "build": [*coco_words(shapes, tmp_path / "out"), "--json"],
        # There are no folders of classes in it.
        "init": ["init", f"{shapes}/images", "--format", "image-folder"],
    }[command]
    started = OnTerminal(*words, cwd=tmp_path)
    started.wait_for("starting")
    stdout = started.finish()
    assert b"\x1b" not in stdout
    assert b"starting" not in stdout
    if command == "init":
        assert started.process.returncode == 1
        assert started.left.startswith("shardbeam: error: ")
    else:
        assert started.process.returncode == 0, started.shown
        assert started.left == ""
        json.loads(stdout)


def test_the_line_is_there_before_beam_is_imported(shapes: Path, tmp_path: Path) -> None:
    """Whatever Beam's import takes: here it never ends."""
    package = tmp_path / "slow" / "apache_beam"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import threading; threading.Event().wait()")
    words = ["plan", *coco_words(shapes, tmp_path / "out")[1:]]
    started = OnTerminal(*words, cwd=tmp_path, PYTHONPATH=str(package.parent))
    started.wait_for("starting")
    started.process.terminate()
    assert started.finish() == b""
    assert started.process.returncode == 130
    assert started.left == "shardbeam: error: interrupted; nothing was written"
