"""Runs builds in processes forked from one that has imported everything, which is fast."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

# Imported so that the forked processes need not import it.
import shardbeam.pipelines.cli.run
from shardbeam.pipelines.cli.main import main
from shardbeam.transforms import write_shards
from shardbeam.transforms.commit import commit, moves
from shardbeam.transforms.dataset.file_names import DATASET_INFO
from shardbeam.transforms.shards.worker import _without_main
from shardbeam.transforms.staging import lease
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage import failures, local
from shardbeam.transforms.storage.base import StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.gcs import storage as gcs
from tests.support.dataset import COMMAND

__all__ = ["Launch", "Program", "Timings", "get_timings", "set_timings", "shardbeam"]

# Audit events that it asks about; it also asks when a file is opened, written or synced.
_EVENTS = ("os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir")


class Timings(NamedTuple):
    """The times that tests change.

    Attributes:
        timeout_s: The timeout of an answer.
        deadline_s: The deadline of all repetitions.
        initial_wait_s: The wait before the first repetition.
        max_wait_s: The longest wait before another one.
        part_bytes: Size of one request of an upload.
    """

    timeout_s: float = 1.0
    deadline_s: float = 20.0
    initial_wait_s: float = 0.01
    max_wait_s: float = 0.05
    part_bytes: int = 8 << 20


def get_timings() -> Timings:
    """Returns the present values."""
    return Timings(
        timeout_s=failures.TIMEOUT_S[1],
        deadline_s=failures.DEADLINE_S,
        initial_wait_s=failures._INITIAL_WAIT_S,
        max_wait_s=failures._MAX_WAIT_S,
        part_bytes=gcs.PART_BYTES,
    )


def set_timings(timings: Timings) -> None:
    """Sets the values in this process."""
    failures.TIMEOUT_S = (timings.timeout_s, timings.timeout_s)
    failures.DEADLINE_S = timings.deadline_s
    failures._INITIAL_WAIT_S = timings.initial_wait_s
    failures._MAX_WAIT_S = timings.max_wait_s
    gcs.PART_BYTES = timings.part_bytes


class Launch(NamedTuple):
    """Settings for starting a program.

    Attributes:
        words: The command line.
        log: The file for its lines.
        host: The address of the storage server for `gs://`.
        timings: Its timeouts and waits for that server.
        root: It asks before it touches a file below this folder; empty for never.
        without: The mechanism that it lacks (`BREAKS`); empty for none.
        fresh: Whether to start the installed command, with all its imports.
    """

    words: Sequence[str]
    log: Path
    host: str = ""
    timings: Timings = Timings()
    root: str = ""
    without: str = ""
    fresh: bool = False


class Program:
    """A build in another process, which leads a process group.

    Args:
        launch: Settings for starting it.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_run, args=(launch, theirs if launch.root else None)
        )
        with _without_main():
            self.process.start()
        theirs.close()

    def finish(self, meet: Callable[[str], str | None], *, timeout_s: float) -> int | None:
        """Waits until the program ends, and kills it after a timeout.

        Args:
            meet: Answers each question with the name of an errno, or None.
            timeout_s: The timeout.

        Returns:
            Its exit code; None if it was killed.
        """
        with contextlib.suppress(EOFError, ConnectionError):
            while self.launch.root and self._connection.poll(timeout_s):
                self._connection.send(meet(self._connection.recv()))
        self.process.join(timeout_s)
        exit_code = self.process.exitcode
        if exit_code is None:
            self.kill()
            self.process.join()
        return exit_code

    def kill(self) -> None:
        """Kills the build; the installed command with all processes that it has started."""
        assert self.process.pid is not None
        if self.launch.fresh:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()


def _run(launch: Launch, connection: Connection | None) -> None:
    os.environ["STORAGE_EMULATOR_HOST"] = launch.host
    with launch.log.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if launch.fresh:
        os.setsid()
        os.execv(COMMAND, [str(COMMAND), *launch.words])
    set_timings(launch.timings)
    if launch.without:
        BREAKS[launch.without]()
    if connection is not None:
        _ask(connection, root=launch.root)
    # At once: what Beam's threads would do at the end belongs to a process that was not killed.
    os._exit(main(launch.words))


def _ask(connection: Connection, *, root: str) -> None:
    """Asks before each change of a file below a folder, and before each is opened."""
    lock = threading.Lock()

    def ask(event: str, path: object) -> None:
        if not isinstance(path, str) or not path.startswith(root):
            return
        with lock:
            connection.send(f"{event} {path}")
            answer = connection.recv()
        if answer is not None:
            number = getattr(errno, answer)
            raise OSError(number, os.strerror(number), path)

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            ask("write" if arguments[2] & (os.O_WRONLY | os.O_RDWR) else "read", arguments[0])
        elif event in _EVENTS:
            ask(event.removeprefix("os."), arguments[0])

    class AskingFile(io.FileIO):
        def write(self, data: Any) -> int:  # noqa: ANN401  # A buffer.
            try:
                ask("write", self.name)
            except OSError:
                super().write(data[: len(data) // 2])
                raise
            return super().write(data)

    def open_asking(path: str, mode: str, buffering: int = -1, opener: Any = None) -> object:  # noqa: ANN401  # As `open` takes it.
        if mode != "xb":
            return open(path, mode, buffering=buffering, opener=opener)
        return io.BufferedWriter(AskingFile(path, mode), buffering)

    def fsync(descriptor: int) -> None:
        ask("write", os.readlink(f"/proc/self/fd/{descriptor}"))
        os.fdatasync(descriptor)

    vars(local)["open"] = open_asking
    os.fsync = fsync  # type: ignore[assignment]
    sys.addaudithook(see)


# Switches that turn mechanisms off, to show that chaos finds what they prevent


def _publish_first() -> None:
    def stage_file(staging: Staging, path: str, data: bytes) -> str:
        uri = join_uri(staging.output, path)
        storage_for(uri).replace(uri, data)
        return uri

    Staging.stage_file = stage_file  # type: ignore[assignment, method-assign]
    commit._publish = lambda *arguments, **options: None


def _keep_the_old_info() -> None:
    delete = moves._delete

    def keep(files: Iterable[StoredFile], *, output: str) -> None:
        delete([file for file in files if file.path != DATASET_INFO], output=output)

    moves._delete = keep


def _resume_by_place() -> None:
    def place(*, split: str, shard_index: int, num_shards: int, **rest: object) -> str:
        return hashlib.sha256(f"{split} {shard_index} {num_shards}".encode()).hexdigest()

    vars(write_shards)["shard_key"] = place


def _hold_nothing() -> None:
    vars(lease)["_flock"] = lambda descriptor, folder: None


def _replace_anything() -> None:
    Staging.check_lease = lambda staging: None  # type: ignore[assignment, method-assign]
    vars(gcs)["_generation"] = lambda version: None


BREAKS: dict[str, Callable[[], None]] = {
    "dataset_info.json last": _publish_first,
    "dataset_info.json goes first": _keep_the_old_info,
    "records in a shard's key": _resume_by_place,
    "one run at a time, on disk": _hold_nothing,
    "preconditions, on gs://": _replace_anything,
}
