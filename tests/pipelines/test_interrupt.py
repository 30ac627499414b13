"""SIGINT and SIGTERM end a run, with all that it has started, and it can go on later."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.pipelines.dataset import (
    TIMEOUT_S,
    Run,
    Tree,
    coco_words,
    finish,
    last_run,
    read_dataset,
    read_tree,
    run,
    start,
)

# Each shard is several files to be synced: enough to do for a signal to come between.
SHARDS = ("--set", "output.num_shards=100")
# Two beside the program.
HELPERS = ("--processes", "3")


@pytest.fixture(scope="module")
def expected(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(shapes, output, *SHARDS)).exit_code == 0
    return read_dataset(output)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def wait_for_a_shard(process: subprocess.Popen[str], output: Path) -> None:
    wait_for(lambda: any(output.glob(".staging/*/shards/*/done")), process)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def check_gone(workers: list[psutil.Process]) -> None:
    assert psutil.wait_procs(workers, timeout=TIMEOUT_S)[1] == []


def check_interrupted(result: Run) -> None:
    assert (result.exit_code, result.stdout) == (130, "")
    *progress, message = result.stderr.splitlines()
    assert message == (
        "shardbeam: error: interrupted; a build goes on from here when it is started again"
    )
    assert all(line.startswith("shardbeam: ") for line in progress)


@pytest.mark.parametrize("mode", [(), HELPERS], ids=["alone", "processes"])
def test_ctrl_c(mode: tuple[str, ...], shapes: Path, expected: Tree, tmp_path: Path) -> None:
    output = tmp_path / "out"
    words = coco_words(shapes, output, *SHARDS)
    process = start(*words, *mode, cwd=tmp_path)
    wait_for_a_shard(process, output)
    workers = workers_of(process)
    assert len(workers) == (2 if mode else 0)
    # As a terminal does: to the workers, too.
    os.killpg(process.pid, signal.SIGINT)
    check_interrupted(finish(process))
    check_gone(workers)
    state = read_tree(output)
    finished = sum(path.endswith("/done") for path in state)
    assert 0 < finished < 100
    assert "dataset_info.json" not in state

    assert run(*words).exit_code == 0
    assert last_run(output)["reused_shards"] == finished
    assert read_dataset(output) == expected


def test_sigterm_while_workers_start(shapes: Path, tmp_path: Path) -> None:
    words = coco_words(shapes, tmp_path / "out", *SHARDS, *HELPERS)
    process = start(*words, cwd=tmp_path)
    wait_for(lambda: len(workers_of(process)) == 2, process)
    workers = workers_of(process)
    process.terminate()
    check_interrupted(finish(process))
    check_gone(workers)


def test_a_killed_run_leaves_no_workers(shapes: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *HELPERS), cwd=tmp_path)
    wait_for_a_shard(process, output)
    workers = workers_of(process)
    assert len(workers) == 2
    process.kill()
    # What the workers hold open of its output is closed when they end.
    assert finish(process).exit_code == -signal.SIGKILL
    check_gone(workers)


@pytest.mark.parametrize("early", [True, False], ids=["while it starts", "at work"])
def test_a_killed_helper_ends_nothing(
    early: bool, shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *HELPERS), cwd=tmp_path)
    if early:
        wait_for(lambda: bool(workers_of(process)), process)
    else:
        wait_for_a_shard(process, output)
    helper = workers_of(process)[0]
    helper.kill()
    result = finish(process)
    assert result.exit_code == 0
    assert f"process {helper.pid}, which wrote shards, has ended; its shard is " in result.stderr
    assert "Traceback" not in result.stderr
    assert read_dataset(output) == expected


def test_what_ends_all_processes_of_a_service_is_an_interrupt(shapes: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *HELPERS), cwd=tmp_path)
    wait_for_a_shard(process, output)
    helpers = workers_of(process)
    for pid in (*(helper.pid for helper in helpers), process.pid):
        os.kill(pid, signal.SIGTERM)
    result = finish(process)
    assert (result.exit_code, result.stdout) == (130, "")
    # Helpers that still started have ended, which may have been told before; the others have not.
    assert result.stderr.splitlines()[-1].startswith("shardbeam: error: interrupted; ")
    check_gone(helpers)
