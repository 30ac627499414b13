"""Flink inside of the job server, on one machine without a cluster (docs/guide/runners.md)."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.runners.flink import TIMEOUT_S, find_jars, is_python_worker, write_worker
from tests.runners.job_server import JAR
from tests.runners.tools import find_tool
from tests.support.dataset import finish, read_dataset, start

pytestmark = [pytest.mark.runners, pytest.mark.timing, pytest.mark.timeout(4 * TIMEOUT_S)]

ROWS = 100_000
WORKERS = 2
_SAMPLE_S = 0.1


class Watch:
    """Watches a process and all its children while the context is entered.

    Attributes:
        peak_bytes: The most anonymous memory that they held together.
        workers: The processes that were Python workers of Flink.
        spilled_bytes: The most that was in the files of `folder`.
    """

    def __init__(self, pid: int, *, folder: Path) -> None:
        self.peak_bytes = 0
        self.workers: set[int] = set()
        self.spilled_bytes = 0
        self._pid = pid
        self._folder = folder
        self._cpu_s: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    @property
    def cpu_s(self) -> float:
        """Seconds of CPUs that the processes have used."""
        return sum(self._cpu_s.values())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        held = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    memory, times = process.memory_info(), process.cpu_times()
                    held += memory.rss - memory.shared
                    self._cpu_s[process.pid] = times.user + times.system
                    if is_python_worker(process):
                        self.workers.add(process.pid)
        self.peak_bytes = max(self.peak_bytes, held)
        self.spilled_bytes = max(self.spilled_bytes, sum(_sizes(self._folder)))


def _sizes(folder: Path) -> Iterator[int]:
    """Lists the sizes of the files below a folder, which come and go."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.stat(os.path.join(parent, name)).st_size


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "rows.jsonl"
    with path.open("w") as file:
        for number in range(ROWS):
            row = {
                "number": number,
                "text": f"row {number} of a table",
                "label": f"class {number % 100}",
                "score": number % 97 / 97,
            }
            file.write(f"{json.dumps(row)}\n")
    return path


def build(table: Path, output: Path, *flags: str, cwd: Path) -> Watch:
    """Builds a dataset, and returns what was seen of the processes."""
    words = ("build", "jsonl", "--manifest", str(table), "--output", str(output))
    temporary = cwd / "temporary"
    temporary.mkdir(exist_ok=True)
    process = start(*words, "--set", "output.num_shards=8", *flags, cwd=cwd)
    with Watch(process.pid, folder=temporary) as watch:
        result = finish(process, timeout_s=2 * TIMEOUT_S)
    assert result.exit_code == 0, result.stderr
    return watch


def test_two_workers_on_one_machine(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find_tool("java")
    jar = find_jars() / JAR
    (tmp_path / "tmp").mkdir()
    worker = write_worker(tmp_path)
    here = build(table, tmp_path / "here", cwd=tmp_path)
    flink = build(
        table,
        tmp_path / "flink",
        "--runner=FlinkRunner",
        "--flink_master=[local]",
        f"--flink_job_server_jar={jar}",
        "--environment_type=PROCESS",
        f"--environment_config={json.dumps({'command': str(worker)})}",
        "--environment_cache_millis=10000",
        f"--parallelism={WORKERS}",
        f"--sdk_worker_parallelism={WORKERS}",
        "--job_server_jvm_properties=-Xmx1g",
        f"--job_server_jvm_properties=-Djava.io.tmpdir={tmp_path / 'temporary'}",
        cwd=tmp_path,
    )
    expected = read_dataset(tmp_path / "here")
    assert read_dataset(tmp_path / "flink") == expected
    assert len(flink.workers) == WORKERS
    # What is sorted and shuffled, of 100,000 records with their keys.
    assert flink.spilled_bytes > 10_000_000
    assert here.spilled_bytes == 0
    with capsys.disabled():
        print(
            f"\n{ROWS:,} rows on Flink in the job server, two workers, beside in process: "
            f"{flink.cpu_s:.0f} s of CPU, not {here.cpu_s:.0f}; a peak of "
            f"{flink.peak_bytes / 1e6:,.0f} MB, not {here.peak_bytes / 1e6:,.0f}; "
            f"{flink.spilled_bytes / 1e6:,.0f} MB spilled to disk"
        )
