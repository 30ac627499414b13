"""A job on Flink ends by itself, in the same bytes, whatever is killed while it writes."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.flink import TIMEOUT_S, FlinkCluster, flink_cluster
from tests.support.dataset import (
    Tree,
    coco_words,
    finish,
    read_dataset,
    run,
    start,
)

# Each wait for the cluster has a limit of its own, and a test has several.
pytestmark = [pytest.mark.runners, pytest.mark.timing, pytest.mark.timeout(3 * TIMEOUT_S)]

# Each shard is several files to be synced: enough to do for a kill to come between.
SHARDS = ("--set", "output.num_shards=200")


@pytest.fixture(scope="module")
def expected(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(shapes, output, *SHARDS)).exit_code == 0
    return read_dataset(output)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    with flink_cluster(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


def finished_shards(output: Path) -> int:
    return len(list(output.glob(".staging/*/shards/*/done")))


def wait_for_shards(process: subprocess.Popen[str], output: Path) -> None:
    while finished_shards(output) < 10:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    assert finished_shards(output) < 200


def check_built(process: subprocess.Popen[str], output: Path, expected: Tree) -> None:
    result = finish(process, timeout_s=TIMEOUT_S)
    assert result.exit_code == 0, result.stderr
    assert f"committed: {output}" in result.stdout
    assert read_dataset(output) == expected


def test_a_killed_python_worker(
    cluster: FlinkCluster, shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *cluster.portable_flags()), cwd=tmp_path)
    wait_for_shards(process, output)
    workers = cluster.python_workers()
    assert len(workers) == 2
    workers[0].kill()
    check_built(process, output, expected)
    assert cluster.failures() > 0


def test_a_killed_task_manager(
    cluster: FlinkCluster, shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *cluster.portable_flags()), cwd=tmp_path)
    wait_for_shards(process, output)
    cluster.task_managers[0].kill()
    # As Kubernetes or YARN would; until then the job waits for a slot.
    cluster.start_task_manager()
    check_built(process, output, expected)
    assert cluster.failures() > 0


def test_ctrl_c_ends_the_command(
    cluster: FlinkCluster, shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = coco_words(shapes, output, *SHARDS)
    process = start(*words, *cluster.portable_flags(), cwd=tmp_path)
    wait_for_shards(process, output)
    process.send_signal(signal.SIGINT)
    result = finish(process, timeout_s=TIMEOUT_S)
    assert (result.exit_code, result.stdout) == (130, "")
    # If the job server does not answer in time, the line does not say that it got the message.
    told = "the job server was asked to cancel the job, but "
    assert result.stderr.splitlines()[-1].replace(told, "") == (
        "shardbeam: error: interrupted; the cluster may go on with the job: check it before you "
        "run the same command again"
    )
    # Flink may do so, and what it builds is whole.
    cluster.wait_for(lambda: cluster.job_state() in ("FINISHED", "CANCELED"))
    if cluster.job_state() == "CANCELED":
        assert run(*words).exit_code == 0
    assert read_dataset(output) == expected


def test_a_machine_that_does_not_see_the_output_ends_the_job(shapes: Path, tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere, tmp_path / "flink"):
        folder.mkdir()
    # One path, which leads each process into its own current folder.
    output = "/proc/self/cwd/out"
    with flink_cluster(tmp_path / "flink", attempts=0, cwds=(here, elsewhere)) as cluster:
        words = coco_words(shapes, output, *SHARDS, *cluster.portable_flags())
        result = finish(start(*words, cwd=here), timeout_s=TIMEOUT_S)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith(
        f"shardbeam: error: {output}: the worker on host {socket.gethostname()} does not see what "
        "this run has written there; every machine must reach the same folder under this path"
    )
    assert not list(elsewhere.rglob("*.tfrecord*"))
