"""Reading from object storage: Shardbeam beside Beam's own `FileSystems.open`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.datasets import Dataset, make_shapes
from benchmarks.measure import SHARDBEAM, Measurement, measure
from benchmarks.report import markdown_table, megabytes, target_row
from tests.support.gcs_server import FakeGcs, find_server, start_server

_DELAY_S = 0.03
_READ_AHEAD = (8, 16, 32, 64, 128)
_DEFAULT_READ_AHEAD = 32
# What a sample for Kubernetes gives each process, and twice as many.
_THREADS = (3, 6)
_TARGET = 8.0
_HOST_VARIABLE = "STORAGE_EMULATOR_HOST"
_PROXY_START_TIMEOUT_S = 30.0


def run_storage(*, data: Path, images: int) -> str:
    """Measures reading from a stand-in of Google Cloud Storage that takes its time.

    Args:
        data: Folder of the benchmarks' data.
        images: How many.

    Returns:
        Markdown.
    """
    program = find_server()
    if program is None:
        return "## Object storage\n\nNot measured: fake-gcs-server is not here.\n"
    dataset = make_shapes(data, images=images)
    with (
        _slow_storage(program) as storage,
        tempfile.TemporaryDirectory(dir=data, prefix="output-") as temporary,
    ):
        bucket = storage.make_bucket("benchmark")
        storage.write_folder(f"{bucket}/images", dataset.images)
        measured = {
            name: _measure(command, name=name, output=Path(temporary) / "output")
            for name, command in _contenders(bucket, output=Path(temporary) / "output")
        }
    return _report(measured, dataset=dataset)


def _contenders(bucket: str, *, output: Path) -> Iterator[tuple[str, list[str]]]:
    build = [
        *(SHARDBEAM, "build", "image-folder", "--images", bucket, "--output", str(output)),
        *("--set", "image.verify=header", "--json"),
    ]
    for read_ahead in _READ_AHEAD:
        yield _shardbeam(read_ahead), [*build, "--read-ahead", str(read_ahead)]
    for threads in _THREADS:
        yield (
            f"Shardbeam, a whole build, 2 processes with {threads} threads each",
            [*build, "--processes", "2", "--threads", str(threads)],
        )
    for threads in (1, _DEFAULT_READ_AHEAD):
        command = [sys.executable, "-m", "benchmarks.filesystems_open", f"{bucket}/", str(threads)]
        yield _file_systems(threads), command


def _shardbeam(read_ahead: int) -> str:
    return f"Shardbeam, a whole build, read-ahead {read_ahead}"


def _file_systems(threads: int) -> str:
    return f"`FileSystems.open`, reading only, threads: {threads}"


def _measure(command: list[str], *, name: str, output: Path) -> Measurement:
    measurement = measure(command)
    shutil.rmtree(output, ignore_errors=True)
    print(f"storage: {name}: {measurement.wall_time_s:.1f} s", file=sys.stderr)
    return measurement


def _images_per_s(measurement: Measurement) -> float:
    told: float = json.loads(measurement.stdout.splitlines()[-1])["images_per_s"]
    return told


def _report(measured: dict[str, Measurement], *, dataset: Dataset) -> str:
    introduction = (
        f"{dataset.count:,} images of {dataset.mean_image_bytes() / 1e3:.0f} KB on the average, "
        f"from fake-gcs-server behind a proxy that adds {_DELAY_S * 1e3:.0f} ms to each request, "
        "in the processes that a build starts by itself. Shardbeam lists, reads, checks headers, "
        "writes shards to disk and commits; `FileSystems.open` lists and reads. Rates are without "
        "imports. One round: nearly all of it is waiting.\n"
    )
    table = markdown_table(
        ["contender", "wall time, s", "CPU time, s", "images/s", "peak memory, MB"],
        (
            (
                name,
                f"{each.wall_time_s:.1f}",
                f"{each.cpu_time_s:.1f}",
                f"{_images_per_s(each):,.0f}",
                megabytes(each.peak_bytes),
            )
            for name, each in measured.items()
        ),
    )
    ratio = _images_per_s(measured[_shardbeam(_DEFAULT_READ_AHEAD)]) / _images_per_s(
        measured[_file_systems(1)]
    )
    targets = markdown_table(
        ["target", "measured", "wanted", "reached"],
        [
            target_row(
                "images/s, times those of `FileSystems.open` in a DoFn (one thread)",
                measured=f"{ratio:.1f}",
                target=f"≥ {_TARGET:.0f}",
                reached=ratio >= _TARGET,
            )
        ],
    )
    return "\n".join(["## Object storage\n", introduction, table, targets])


@contextlib.contextmanager
def _slow_storage(program: str) -> Iterator[FakeGcs]:
    """Runs a server and, in a process of its own, the proxy that all but this process talk to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with start_server(program, public_port=port) as server_port:
        words = [str(port), str(server_port), str(_DELAY_S)]
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.slow_proxy", *words])
        before = os.environ.get(_HOST_VARIABLE)
        os.environ[_HOST_VARIABLE] = f"http://127.0.0.1:{port}"
        try:
            _wait_for(port)
            yield FakeGcs(server_port=server_port, public_port=port)
        finally:
            process.kill()
            process.wait()
            if before is None:
                del os.environ[_HOST_VARIABLE]
            else:
                os.environ[_HOST_VARIABLE] = before


def _wait_for(port: int) -> None:
    deadline_s = time.monotonic() + _PROXY_START_TIMEOUT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > deadline_s:
            raise RuntimeError("the proxy does not start")
        time.sleep(0.05)
