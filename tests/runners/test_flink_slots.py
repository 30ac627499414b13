"""Two TaskManagers with two slots each: network memory, the job's name, and how it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.flink import TIMEOUT_S, FlinkCluster, flink_cluster
from tests.support.dataset import coco_words, finish, read_dataset, run, start

pytestmark = [pytest.mark.runners, pytest.mark.timing, pytest.mark.timeout(3 * TIMEOUT_S)]

SLOTS = 2
# What docs/guide/runners.md says.
NETWORK_MB_A_SLOT = 128


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    folder = tmp_path_factory.mktemp("flink")
    with flink_cluster(folder, slots=SLOTS, network_mb=SLOTS * NETWORK_MB_A_SLOT) as cluster:
        yield cluster


def test_all_slots_have_enough_network_memory(
    cluster: FlinkCluster, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*coco_words(shapes, tmp_path / "here")).exit_code == 0
    flags = cluster.flink_flags()
    assert "--parallelism=4" in flags
    process = start(*coco_words(shapes, tmp_path / "out", *flags), cwd=tmp_path)
    result = finish(process, timeout_s=TIMEOUT_S)
    assert result.exit_code == 0, result.stderr
    assert read_dataset(tmp_path / "out") == read_dataset(tmp_path / "here")
    assert cluster.failures() == 0
    job = cluster.last_job()
    assert job["name"].startswith("shardbeam-coco-")
    with capsys.disabled():
        print(f"\n{job['name']}: {job['state']}, {job['duration'] / 1000:.0f} s, {flags[-1]}")
        print("\n".join(result.stdout.splitlines()[:5]))


def test_a_cancelled_job(cluster: FlinkCluster, shapes: Path, tmp_path: Path) -> None:
    words = coco_words(shapes, tmp_path / "out", *cluster.flink_flags())
    before = cluster.last_job()["jid"] if cluster.has_jobs() else None
    process = start(*words, cwd=tmp_path)
    cluster.wait_for(lambda: cluster.has_jobs() and cluster.last_job()["jid"] != before)
    cluster.cancel_job()
    result = finish(process, timeout_s=TIMEOUT_S)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        "shardbeam: error: the job was cancelled on its cluster; run the same command again, a "
        "build keeps its finished shards"
    )


def test_the_errors_of_a_job_that_starts_again(shapes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "flink"
    folder.mkdir()
    with flink_cluster(folder, attempts=2, slots=SLOTS, network_mb=SLOTS * 48) as cluster:
        words = coco_words(shapes, tmp_path / "out", *cluster.flink_flags())
        result = finish(start(*words, cwd=tmp_path), timeout_s=TIMEOUT_S)
    assert (result.exit_code, result.stdout) == (1, "")
    first = next(line for line in result.stderr.splitlines() if "Insufficient number" in line)
    assert first.startswith(
        "WARNING shardbeam.pipelines.runners.flink: the job fails on the cluster, which may try "
        "again: java.io.IOException: Insufficient number of network buffers: required "
    )
