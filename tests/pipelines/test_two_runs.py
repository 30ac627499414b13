"""Two runs of one output at once: one of them writes it, the other one says who does."""

from __future__ import annotations

import datetime
import functools
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardbeam.pipelines import lease as pipelines_lease
from shardbeam.pipelines import run as pipelines_run
from shardbeam.pipelines.run_error import RunError
from shardbeam.pipelines.runners import LocalRunner
from shardbeam.transforms.dataset.lease import LeaseRecord, check_claim, new_record, read_lease
from shardbeam.transforms.dataset.lease_keeper import LeaseKeeper
from shardbeam.transforms.storage.local import LocalStorage
from tests.pipelines.dataset import (
    Tree,
    coco_words,
    dataset_files,
    finish,
    last_run,
    read_dataset,
    read_tree,
    run,
    run_records,
    start,
)

SHARDS = ("--set", "output.num_shards=5")


@pytest.fixture(scope="module")
def expected(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(shapes, output, *SHARDS)).exit_code == 0
    return read_dataset(output)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def words(shapes: Path, output: Path) -> list[str]:
    return coco_words(shapes, output, *SHARDS)


def lease_file(output: Path) -> Path:
    return output / "runs" / ".lease.json"


def read_record(output: Path) -> LeaseRecord:
    record = read_lease(str(lease_file(output))).record
    assert record is not None
    return record


def foreign(output: Path, *, expires_in_s: float = 60, **changes: Any) -> LeaseRecord:  # noqa: ANN401
    """The lease of a run on another machine."""
    record = new_record(
        plan="plan", output=str(output), runner="LocalRunner", ends_with_process=False
    )
    expires_at = record.renewed_at + datetime.timedelta(seconds=expires_in_s)
    return msgspec.structs.replace(
        record, host="elsewhere", user="ann", pid=7, expires_at=expires_at, **changes
    )


def write_foreign(output: Path, **changes: Any) -> LeaseRecord:  # noqa: ANN401
    """Writes the lease of a run on another machine."""
    return write_record(output, foreign(output, **changes))


def write_record(output: Path, record: LeaseRecord) -> LeaseRecord:
    storage, uri = LocalStorage(), str(lease_file(output))
    # Written past the lock, it could get lost to a swap that is under way.
    while True:
        stored = storage.stat(uri)
        version = None if stored is None else stored.version
        if storage.swap(uri, msgspec.json.encode(record), version=version) is not None:
            return record


def last_line(stderr: str) -> str:
    message = stderr.splitlines()[-1]
    assert message.startswith("shardbeam: error: ")
    return message.removeprefix("shardbeam: error: ")


# In two processes


def test_the_second_of_two_runs_ends_at_once_and_the_first_commits(
    words: list[str], shapes: Path, output: Path, expected: Tree, tmp_path: Path
) -> None:
    first = start(*words, cwd=tmp_path)
    while not any(output.glob(".staging/*/runs/*/totals.json")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.001)
    # It holds the lease, and does not come to its end meanwhile.
    os.kill(first.pid, signal.SIGSTOP)
    before = read_tree(output)
    seconds = [
        run(*words),
        run(*words, "--if-changed"),
        run(*coco_words(shapes, output, "--overwrite", "--set", "image.quality=90")),
    ]
    as_json = run(*words, "--json")
    planned = run("plan", *words[1:])
    assert read_tree(output) == before
    os.kill(first.pid, signal.SIGCONT)
    assert finish(first).exit_code == 0
    assert read_dataset(output) == expected
    assert len(run_records(output)) == 1

    for second in seconds:
        assert (second.exit_code, second.stdout) == (4, "")
        assert re.fullmatch(
            rf"shardbeam: error: {output}: another run is writing it: LocalRunner, process "
            rf"{first.pid} of \S+, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC; wait for its end. If "
            r"it has crashed, its lease ends in \d+ s, 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\n",
            second.stderr,
        )
    summary = json.loads(as_json.stdout)
    assert (as_json.exit_code, summary["exit_code"], summary["status"]) == (4, 4, "failed")
    assert summary["message"] == last_line(as_json.stderr)
    # A plan writes nothing, and asks nobody.
    assert planned.exit_code == 0


def test_a_run_goes_on_at_once_after_another_was_killed(
    words: list[str], output: Path, expected: Tree, tmp_path: Path
) -> None:
    first = start(*words, cwd=tmp_path)
    while not any(output.glob(".staging/*/shards/*/done")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.001)
    first.kill()
    finish(first)
    record = read_record(output)
    assert (record.pid, record.released) == (first.pid, False)
    assert record.expires_at is not None
    assert record.expires_at > datetime.datetime.now(tz=datetime.timezone.utc)
    assert run(*words).exit_code == 0
    assert read_dataset(output) == expected
    assert last_run(output)["reused_shards"] > 0


# One that comes in between


@pytest.fixture
def come_between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something done once, after the next run has seen a free lease."""

    def arrange(act: Callable[[], None]) -> None:
        look = pipelines_run._look_at_output

        def look_and_act(*arguments: Any, **options: Any) -> object:  # noqa: ANN401
            seen = look(*arguments, **options)
            monkeypatch.setattr(pipelines_run, "_look_at_output", look)
            act()
            return seen

        monkeypatch.setattr(pipelines_run, "_look_at_output", look_and_act)

    return arrange


def test_a_run_that_begins_in_between_is_found(
    words: list[str], output: Path, come_between: Callable[[Callable[[], None]], None]
) -> None:
    come_between(lambda: void(write_foreign(output)))
    result = run(*words)
    assert result.exit_code == 4
    assert "process 7 of ann@elsewhere" in result.stderr
    assert list(read_tree(output)) == ["runs/.lease.json"]


def test_a_run_that_begins_and_ends_in_between_is_found(
    words: list[str],
    output: Path,
    expected: Tree,
    come_between: Callable[[Callable[[], None]], None],
) -> None:
    come_between(lambda: void(run(*words)))
    result = run(*words)
    assert result.exit_code == 2
    assert "holds a committed dataset already" in result.stderr
    assert read_dataset(output) == expected


def void(value: object) -> None:
    del value


# A lease that is lost


@pytest.mark.parametrize("renews", [True, False], ids=["by a renewal", "at the gate"])
def test_a_run_that_loses_its_lease_stops_and_commits_nothing(
    renews: bool,
    words: list[str],
    output: Path,
    expected: Tree,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Never, or too often for the gate to come first.
    renew_s = 0.01 if renews else 1e6
    monkeypatch.setattr(
        pipelines_lease, "LeaseKeeper", functools.partial(LeaseKeeper, renew_s=renew_s)
    )
    taken: list[LeaseRecord] = []
    done, gone_on = threading.Event(), list[None]()

    def take_and_check(claim: Any) -> None:  # noqa: ANN401
        assert not taken
        # Noted first: the loss may be noticed before the next line.
        taken.append(foreign(output))
        write_record(output, taken[0])
        if renews:
            # Work that goes on; that the run does not wait for it is what is tested.
            done.wait(60)
            gone_on.append(None)
        check_claim(claim)

    monkeypatch.setattr("shardbeam.transforms.commit_dataset.check_claim", take_and_check)
    result = run(*words)
    assert not gone_on
    done.set()
    assert result.exit_code == 4, result
    assert last_line(result.stderr).startswith(
        f"{lease_file(output)}: this run has lost its lease of the output, and stops: LocalRunner, "
        "process 7 of ann@elsewhere took it at "
    )
    assert set(dataset_files(read_tree(output))) == set()
    # It is the other's lease, which the end of this run leaves alone.
    assert read_record(output) == taken[0]
    # What was finished is used, once that run has ended.
    monkeypatch.undo()
    write_foreign(output, released=True)
    assert run(*words).exit_code == 0
    assert read_dataset(output) == expected
    assert last_run(output)["reused_shards"] == 5


# Leases that are found


def test_a_lease_of_another_machine_is_respected_until_it_expires(
    words: list[str], output: Path, expected: Tree
) -> None:
    write_foreign(output)
    assert run(*words).exit_code == 4
    write_foreign(output, expires_in_s=0)
    assert run(*words).exit_code == 0
    assert read_dataset(output) == expected
    # Where there is nothing to do, a holder counts as well: the dataset is about to be replaced.
    write_foreign(output)
    assert run(*words, "--if-changed").exit_code == 4
    assert run(*words).exit_code == 4


def test_a_file_that_is_no_lease_is_refused(words: list[str], output: Path) -> None:
    lease_file(output).parent.mkdir(parents=True)
    lease_file(output).write_text("mine")
    result = run(*words, "--overwrite")
    assert result.exit_code == 2
    assert f"{lease_file(output)}: not a lease of Shardbeam: " in last_line(result.stderr)
    assert read_tree(output) == {"runs/.lease.json": b"mine"}


def test_what_a_killed_swap_leaves_is_not_foreign(words: list[str], output: Path) -> None:
    write_foreign(output, released=True)
    lease_file(output).with_name(".lease.json.tmp").write_text("{")
    assert run(*words).exit_code == 0
    assert [path.name for path in (output / "runs").glob(".lease*")] == [".lease.json"]


# How a lease is let go


def test_every_end_of_a_run_releases_the_lease(
    words: list[str], shapes: Path, output: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    shutil.copytree(shapes / "images", tmp_path / "images")
    (tmp_path / "images" / "000000000001.jpg").write_bytes(b"")
    for settings, exit_code in (
        ([f"splits.train.annotations=[{bad}]"], 1),
        ([f"splits.train.images={tmp_path}/images", "rejects.max_ratio=0"], 3),
        ([], 0),
    ):
        flags = [word for setting in settings for word in ("--set", setting)]
        assert run(*words, *flags).exit_code == exit_code
        assert read_record(output).released
    # For whoever asks who wrote it last.
    assert read_record(output).pid == os.getpid()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_releases_the_lease(
    number: signal.Signals, words: list[str], output: Path, tmp_path: Path
) -> None:
    process = start(*words, cwd=tmp_path)
    while not any(output.glob(".staging/*/runs/*/totals.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(number)
    assert finish(process).exit_code in (130, 0)
    assert read_record(output).released


def test_where_nothing_has_to_be_written_nothing_is(
    words: list[str], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*words).exit_code == 0
    before = read_tree(output)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "x")

    monkeypatch.setattr(LocalStorage, "swap", refuse)
    assert run(*words, "--if-changed").exit_code == 0
    assert run(*words).exit_code == 2
    assert read_tree(output) == before
    # And where it has to be, that is one line.
    result = run(*words, "--overwrite")
    assert (result.exit_code, last_line(result.stderr)) == (
        1,
        f"{output}: cannot be written: Permission denied; mend it and run the same command again, "
        "finished shards are kept",
    )
    assert read_tree(output) == before


# Runners whose jobs may outlive this process


class FlinkRunner(LocalRunner):
    """One that is taken for a cluster."""


@pytest.fixture
def on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines_run, "make_runner", lambda options: FlinkRunner(options=options))


@pytest.mark.usefixtures("on_a_cluster")
def test_a_cluster_that_is_done_holds_nothing(words: list[str], output: Path) -> None:
    assert run(*words).exit_code == 0
    record = read_record(output)
    assert (record.runner, record.released) == ("FlinkRunner", True)
    # That this process ends says nothing about the cluster.
    assert record.process is None


@pytest.mark.usefixtures("on_a_cluster")
@pytest.mark.parametrize(
    ("error", "exit_code", "released"),
    [
        (RuntimeError("Pipeline job-1 failed in state FAILED: out of slots"), 1, True),
        (RunError("the connection to the job server broke"), 1, False),
        (KeyboardInterrupt(), 130, False),
    ],
    ids=["failed", "not known", "interrupted"],
)
def test_a_cluster_that_may_go_on_holds_the_lease_until_it_expires(
    error: BaseException,
    exit_code: int,
    released: bool,
    words: list[str],
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(pipelines_run, "run_to_end", fail)
    result = run(*words)
    assert result.exit_code == exit_code, result
    assert read_record(output).released is released
    if exit_code == 130:
        assert "The output is kept from other runs for 120 s more" in last_line(result.stderr)
    monkeypatch.undo()
    assert run(*words).exit_code == (0 if released else 4)


# Folders of versions


def take_again(file: Path) -> LeaseRecord:
    """Makes a lease that was released one that another machine holds; returns what it was."""
    record = read_lease(str(file)).record
    assert record is not None
    held = msgspec.structs.replace(
        record,
        released=False,
        process=None,
        expires_at=record.renewed_at + datetime.timedelta(hours=1),
    )
    file.write_bytes(msgspec.json.encode(held))
    return record


def test_runs_that_name_their_own_folders_share_a_lease(shapes: Path, tmp_path: Path) -> None:
    template = tmp_path / "{version}" / "{date}-{fingerprint}"
    words = coco_words(shapes, template, "--version", "2.0.0")
    assert run(*words).exit_code == 0
    folder = tmp_path / "2.0.0"
    (file,) = (folder / ".shardbeam-leases").iterdir()
    record = take_again(file)
    assert (record.released, record.output) == (True, str(folder / "{date}-{fingerprint}"))
    result = run(*words)
    assert result.exit_code == 4
    assert str(folder / "{date}-{fingerprint}") in result.stderr
    # Another plan has versions of its own.
    assert run(*words, "--set", "seed=1").exit_code == 0


def test_two_configs_that_share_the_folder_of_a_day_share_a_lease(
    shapes: Path, tmp_path: Path
) -> None:
    words = coco_words(shapes, tmp_path / "{date}")
    assert run(*words).exit_code == 0
    (file,) = (tmp_path / ".shardbeam-leases").iterdir()
    take_again(file)
    for more in ((), ("--set", "seed=1"), ("--set", "output.num_shards=3", "--overwrite")):
        assert run(*words, *more).exit_code == 4
    # Other folders are others'.
    assert run(*coco_words(shapes, tmp_path / "other-{date}")).exit_code == 0
