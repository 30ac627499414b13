"""SIGINT and SIGTERM end a run, with all that it has started, and it can go on later."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.pipelines.dataset import (
    TIMEOUT_S,
    Tree,
    coco_words,
    finish,
    last_run,
    read_dataset,
    read_tree,
    run,
    start,
)

MULTI_PROCESSING = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
# Each shard is several files to be synced: enough to do for a signal to come between.
SHARDS = ("--set", "output.num_shards=200")


@pytest.fixture(scope="module")
def expected(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(shapes, output, *SHARDS)).exit_code == 0
    return read_dataset(output)


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        (signal.SIGINT, ()),
        (signal.SIGINT, MULTI_PROCESSING),
        (signal.SIGTERM, MULTI_PROCESSING),
    ],
    ids=["SIGINT", "SIGINT, processes", "SIGTERM, processes"],
)
def test_an_interrupted_run(
    number: signal.Signals, mode: tuple[str, ...], shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = coco_words(shapes, output, *SHARDS)
    process = start(*words, *mode, cwd=tmp_path)
    while process.poll() is None and not any(output.glob(".staging/*/shards/*/done")):
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == (2 if mode else 0)
    process.send_signal(number)
    result = finish(process)

    assert result.exit_code == 130
    assert result.stdout == ""
    # Maybe after a word on how far it was.
    assert result.stderr.splitlines()[-1:] == [
        "shardbeam: error: interrupted; a build goes on from here when it is started again"
    ]
    assert "Traceback" not in result.stderr
    assert psutil.wait_procs(workers, timeout=TIMEOUT_S)[1] == []
    state = read_tree(output)
    finished = sum(path.endswith("/done") for path in state)
    assert 0 < finished < 200
    assert "dataset_info.json" not in state

    assert run(*words).exit_code == 0
    assert last_run(output)["reused_shards"] == finished
    assert read_dataset(output) == expected


def test_a_killed_run_leaves_no_workers(shapes: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *MULTI_PROCESSING), cwd=tmp_path)
    while process.poll() is None and not any(output.glob(".staging/*/shards/*/done")):
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    process.kill()
    # Their pipes end when they do.
    assert finish(process).exit_code == -signal.SIGKILL
    assert psutil.wait_procs(workers, timeout=TIMEOUT_S)[1] == []
