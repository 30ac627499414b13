"""Two runs of one output on disk: one writes it, and the other ends with an error."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardbeam.pipelines import output_folder as pipelines_output
from tests.support.dataset import (
    Tree,
    coco_words,
    finish,
    held,
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


# Stops when its first shard is finished.
STOPPING = """
import os, signal, sys

from shardbeam.transforms.staging.staging import Staging

finish_shard = Staging.finish_shard

def stop(*arguments):
    Staging.finish_shard = finish_shard
    finish_shard(*arguments)
    os.kill(os.getpid(), signal.SIGSTOP)

Staging.finish_shard = stop
from shardbeam.__main__ import console
sys.exit(console())
"""


def test_the_second_of_two_runs_ends_at_once_and_the_first_commits(
    words: list[str], shapes: Path, output: Path, expected: Tree, tmp_path: Path
) -> None:
    first = start(*words, cwd=tmp_path, command=(sys.executable, "-c", STOPPING))
    # Stopped, it keeps the output for as long as that lasts.
    os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    before = read_tree(output)
    (tmp_path / "link").symlink_to(output)
    seconds = [
        run(*words),
        run(*words, "--if-changed"),
        run(*coco_words(shapes, output, "--overwrite", "--set", "image.quality=90")),
    ]
    by_link = run(*coco_words(shapes, tmp_path / "link"))
    as_json = run(*words, "--json")
    planned = run("plan", *words[1:])
    assert read_tree(output) == before
    os.kill(first.pid, signal.SIGCONT)
    assert finish(first).exit_code == 0
    assert read_dataset(output) == expected
    assert len(run_records(output)) == 1

    for second in seconds:
        assert (second.exit_code, second.stdout) == (4, "")
        assert second.stderr == (
            f"shardbeam: error: {output}: another run on this machine is writing there; wait until "
            "it has ended\n"
        )
    assert by_link.exit_code == 4
    summary = json.loads(as_json.stdout)
    assert (as_json.exit_code, summary["exit_code"], summary["status"]) == (4, 4, "failed")
    assert as_json.stderr == f"shardbeam: error: {summary['message']}\n"
    # A plan writes nothing, and needs no lock.
    assert planned.exit_code == 0


# Runs that come in between


@pytest.fixture
def come_between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Has something done once, after the next run has looked at an output that is not there."""

    def arrange(act: Callable[[], Any]) -> None:
        look = pipelines_output._look

        def look_and_act(*arguments: Any, **options: Any) -> object:  # noqa: ANN401
            seen = look(*arguments, **options)
            monkeypatch.setattr(pipelines_output, "_look", look)
            act()
            return seen

        monkeypatch.setattr(pipelines_output, "_look", look_and_act)

    return arrange


def test_a_run_that_begins_in_between_is_found(
    words: list[str], output: Path, come_between: Callable[[Callable[[], Any]], None]
) -> None:
    with contextlib.ExitStack() as stack:
        come_between(lambda: stack.enter_context(held(output)))
        assert run(*words).exit_code == 4
        assert read_tree(output) == {}
    assert not output.exists()


def test_a_run_that_begins_and_ends_in_between_is_found(
    words: list[str],
    output: Path,
    expected: Tree,
    come_between: Callable[[Callable[[], Any]], None],
) -> None:
    come_between(lambda: run(*words))
    result = run(*words, exit_code=2)
    assert "holds a committed dataset already" in result.error
    assert read_dataset(output) == expected


# Files that are left


def test_a_run_that_writes_no_shard_leaves_nothing(
    shapes: Path, tmp_path: Path, output: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    words = coco_words(
        shapes, tmp_path / "new" / "out", "--set", f"splits.train.annotations={[str(bad)]}"
    )
    assert run(*words).exit_code == 1
    assert not (tmp_path / "new").exists()
    # A folder that was there stays.
    output.mkdir()
    assert run(*words, "--output", str(output)).exit_code == 1
    assert list(output.iterdir()) == []


def test_every_end_of_a_run_frees_the_output(
    words: list[str], shapes: Path, output: Path, tmp_path: Path
) -> None:
    shutil.copytree(shapes / "images", tmp_path / "images")
    (tmp_path / "images" / "000000000001.jpg").write_bytes(b"")
    refused = [f"splits.train.images={tmp_path}/images", "rejects.max_ratio=0"]
    flags = [word for setting in refused for word in ("--set", setting)]
    assert run(*words, *flags).exit_code == 3
    with held(output):
        pass
    for exit_code in (0, 2):
        assert run(*words).exit_code == exit_code
        with held(output):
            # Though nothing has to be written: the dataset may be about to be replaced.
            assert run(*words, "--if-changed").exit_code == 4
    assert not list(output.glob("runs/.lease*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="to root, nothing is unwritable")
def test_where_nothing_has_to_be_written_nothing_is(words: list[str], output: Path) -> None:
    assert run(*words).exit_code == 0
    output.chmod(0o500)
    assert run(*words, "--if-changed").exit_code == 0
    assert run(*words).exit_code == 2
    output.chmod(0o700)


def test_a_lease_on_disk_of_an_earlier_version_is_not_foreign(
    words: list[str], output: Path, expected: Tree
) -> None:
    (output / "runs").mkdir(parents=True)
    (output / "runs" / ".lease.json").write_text("{}")
    assert run(*words).exit_code == 0
    assert read_dataset(output) == expected


def test_folders_of_versions_are_held_apart(shapes: Path, tmp_path: Path) -> None:
    words = coco_words(shapes, tmp_path / "{fingerprint}")
    assert run(*words).exit_code == 0
    (folder,) = tmp_path.iterdir()
    with held(folder):
        assert run(*words).exit_code == 4
        # Another config writes another folder.
        assert run(*words, "--set", "seed=1").exit_code == 0
