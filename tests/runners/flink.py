"""A real Flink cluster on this machine: a JobManager, two TaskManagers, a Beam job server."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest

from tests.runners.job_server import JAR, MAIN, OPENED
from tests.runners.tools import TOOLS, find_tool

# Starting a cluster, and a build on it: seconds of Java for each stage, on a busy machine.
TIMEOUT_S = 280
_HOST = "127.0.0.1"
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"

_CONFIG = """\
jobmanager.rpc.address: {host}
jobmanager.rpc.port: {rpc_port}
jobmanager.bind-host: {host}
rest.address: {host}
rest.bind-address: {host}
rest.port: {rest_port}
taskmanager.host: {host}
taskmanager.bind-host: {host}
io.tmp.dirs: {folder}/tmp
# Flink's own scripts work these out, and are not used here.
taskmanager.cpu.cores: 1
taskmanager.numberOfTaskSlots: {slots}
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.managed.size: 64m
taskmanager.memory.network.min: {network_mb}m
taskmanager.memory.network.max: {network_mb}m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 64m
taskmanager.memory.jvm-overhead.max: 64m
# Beam's classes are on the cluster's own class path. Loaded again for each job, they would end
# the Python workers after every stage.
classloader.resolve-order: parent-first
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: {attempts}
# 2.5 times `--environment_cache_millis`: until then Beam would give the job a dead worker.
restart-strategy.fixed-delay.delay: 5 s
# A killed TaskManager is noticed within seconds.
heartbeat.interval: 1000
heartbeat.timeout: 5000
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlinkCluster:
    """A running cluster.

    Attributes:
        folder: Its configuration, logs and temporary files.
        jars: The folder with all jars.
        rest_port: Flink's REST interface.
        job_port: Beam's job service.
        slots: Slots of each TaskManager.
        processes: All that was started.
        task_managers: Those that run tasks.
    """

    folder: Path
    jars: Path
    rest_port: int
    job_port: int
    slots: int
    processes: list[subprocess.Popen[bytes]] = dataclasses.field(default_factory=list)
    task_managers: list[subprocess.Popen[bytes]] = dataclasses.field(default_factory=list)

    def portable_flags(
        self, *, worker: Path | None = None, environment: Mapping[str, str] = _NO_VARIABLES
    ) -> tuple[str, ...]:
        """Flags that send a build to the cluster's job server.

        Args:
            worker: What starts a Python worker; Beam's boot, in this environment, where None.
            environment: Variables that workers have beyond the TaskManagers'.
        """
        return (
            "--runner=PortableRunner",
            f"--job_endpoint={_HOST}:{self.job_port}",
            *self._flags(worker, environment),
        )

    def flink_flags(self, *, environment: Mapping[str, str] = _NO_VARIABLES) -> tuple[str, ...]:
        """Flags that make the build start a job server of its own."""
        return (
            "--runner=FlinkRunner",
            f"--flink_master={_HOST}:{self.rest_port}",
            f"--flink_job_server_jar={self.jars / JAR}",
            *self._flags(None, environment),
        )

    def _flags(self, worker: Path | None, environment: Mapping[str, str]) -> tuple[str, ...]:
        command = str(worker or write_worker(self.folder))
        return (
            "--environment_type=PROCESS",
            f"--environment_config={json.dumps({'command': command, 'env': dict(environment)})}",
            # Workers stay from one stage to the next.
            "--environment_cache_millis=2000",
            f"--parallelism={len(self.task_managers) * self.slots}",
        )

    def start(self, *, cwds: Sequence[Path | None] = (None, None)) -> None:
        """Starts everything, and returns when it is ready for a job.

        Args:
            cwds: For each TaskManager the current folder of its workers; None for any.
        """
        self._start_java(_JOB_MANAGER, "--configDir", str(self.folder), name="job-manager")
        for cwd in cwds:
            self.start_task_manager(cwd=cwd)
        self._start_java(
            MAIN,
            *("--job-host", _HOST, "--job-port", str(self.job_port)),
            *("--artifact-port", "0", "--expansion-port", "0"),
            *("--flink-master", f"{_HOST}:{self.rest_port}"),
            *("--artifacts-dir", str(self.folder / "artifacts")),
            name="job-server",
        )
        self.wait_for(lambda: self._count_task_managers() == len(cwds))
        self.wait_for(lambda: _listens(self.job_port))

    def start_task_manager(self, *, cwd: Path | None = None) -> None:
        """Starts a TaskManager."""
        arguments = ("--configDir", str(self.folder))
        self.task_managers.append(
            self._start_java(_TASK_MANAGER, *arguments, name="task-manager", cwd=cwd)
        )

    def stop(self) -> None:
        """Ends everything, with the workers that TaskManagers have started."""
        for process in self.processes:
            # They lead groups of their own; a worker may outlive its TaskManager in there.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds; what cannot be asked yet does not."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if condition():
                    return
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def logs(self) -> str:
        """Returns the ends of all logs."""
        return "\n".join(
            f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}"
            for log in sorted(self.folder.glob("*.log"))
        )

    def failures(self) -> int:
        """Returns how often the last submitted job has failed."""
        history = self._get(f"jobs/{self.last_job()['jid']}/exceptions")["exceptionHistory"]
        return len(history["entries"])

    def job_state(self) -> str:
        """Returns the state of the last submitted job."""
        state: str = self.last_job()["state"]
        return state

    def is_idle(self) -> bool:
        """Returns whether all jobs have ended."""
        ended = ("FINISHED", "CANCELED", "FAILED")
        return all(job["state"] in ended for job in self._get("jobs/overview")["jobs"])

    def has_jobs(self) -> bool:
        """Returns whether a job was submitted."""
        return bool(self._get("jobs/overview")["jobs"])

    def cancel_job(self) -> None:
        """Cancels the last submitted job, as Flink's web interface does."""
        url = f"http://{_HOST}:{self.rest_port}/jobs/{self.last_job()['jid']}?mode=cancel"
        with urllib.request.urlopen(urllib.request.Request(url, method="PATCH")):
            pass

    def last_job(self) -> dict[str, Any]:
        """Returns what Flink says about the last submitted job."""
        jobs: list[dict[str, Any]] = self._get("jobs/overview")["jobs"]
        return max(jobs, key=lambda job: job["start-time"])

    def python_workers(self) -> list[psutil.Process]:
        """Lists the Python workers of all TaskManagers."""
        return [
            process
            for task_manager in self.task_managers
            if task_manager.poll() is None
            for process in psutil.Process(task_manager.pid).children(recursive=True)
            if is_python_worker(process)
        ]

    def _count_task_managers(self) -> int:
        return len(self._get("taskmanagers")["taskmanagers"])

    def _get(self, path: str) -> Any:  # noqa: ANN401  # JSON.
        with urllib.request.urlopen(f"http://{_HOST}:{self.rest_port}/{path}") as answer:
            return json.load(answer)

    def _start_java(
        self, main: str, *arguments: str, name: str, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        opens = [f"--add-opens={opened}=ALL-UNNAMED" for opened in OPENED]
        with (self.folder / f"{name}-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                ["java", "-Xmx450m", *opens, "-cp", f"{self.jars}/*", main, *arguments],
                cwd=cwd or self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process


@contextlib.contextmanager
def flink_cluster(
    folder: Path,
    *,
    attempts: int = 10,
    cwds: Sequence[Path | None] = (None, None),
    slots: int = 1,
    network_mb: int = 160,
) -> Iterator[FlinkCluster]:
    """Runs a cluster; skips the test where it cannot be had.

    Args:
        folder: Where its files are.
        attempts: How often it starts a failed job again.
        cwds: For each TaskManager the current folder of its workers; None for any.
        slots: Slots of each TaskManager.
        network_mb: Network memory of each TaskManager.
    """
    find_tool("java")
    find_tool("beam-boot")
    jars = find_jars()
    rest_port = free_port()
    (folder / "tmp").mkdir()
    (folder / "config.yaml").write_text(
        _CONFIG.format(
            host=_HOST,
            rest_port=rest_port,
            rpc_port=free_port(),
            folder=folder,
            attempts=attempts,
            slots=slots,
            network_mb=network_mb,
        )
    )
    cluster = FlinkCluster(
        folder=folder, jars=jars, rest_port=rest_port, job_port=free_port(), slots=slots
    )
    try:
        cluster.start(cwds=cwds)
        yield cluster
    finally:
        cluster.stop()


def find_jars() -> Path:
    """Finds the folder with the jars of Flink and of Beam's job server; skips the test if none."""
    jars = TOOLS / "flink"
    if not (jars / JAR).is_file():
        pytest.skip("Flink's jars are not here; `make runner-tools` gets them")
    return jars


def free_port() -> int:
    """Finds a port on loopback that nobody listens on."""
    with socket.socket() as server:
        server.bind((_HOST, 0))
        port: int = server.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.create_connection((_HOST, port)):
        return True


def is_python_worker(process: psutil.Process) -> bool:
    try:
        return "apache_beam.runners.worker.sdk_worker_main" in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def write_worker(folder: Path) -> Path:
    """Writes the command that starts a worker: Beam's boot, in this environment."""
    path = folder / "worker"
    path.write_text(
        "#!/bin/sh\n"
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"
        "export RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1\n"
        f"exec {shlex.quote(str(find_tool('beam-boot')))} "
        f'--semi_persist_dir={shlex.quote(str(folder / "tmp"))} "$@"\n'
    )
    path.chmod(0o755)
    return path
