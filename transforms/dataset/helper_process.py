"""A process beside this one that writes shards past the interpreter's lock."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from typing import BinaryIO, NoReturn

from shardbeam.transforms.core.process import python_command, tune_process
from shardbeam.transforms.dataset.shard_encoder import ShardEncoder, ShardEncoderSettings, ShardWork
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.storage.usage import usage_counter

_CODE = """\
from shardbeam.transforms.dataset.helper_process import serve
serve()
"""


class HelperLostError(Exception):
    """A helper process has ended without an answer."""


class HelperProcess:
    """A process that writes shards, one at a time.

    It shares nothing with this one but two pipes, imports no Beam and none of the program that
    started it, and ends when this process does, in whatever way. `multiprocessing` would run that
    program's file again, and needs it to expect that.

    Attributes:
        is_lost: Whether it has ended without an answer.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            python_command(_CODE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What goes wrong comes as an answer.
            stderr=subprocess.DEVNULL,
            # No matrix is multiplied; the threads for it would only take CPU time to start.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            # Ctrl-C is for the program alone.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin
        self._answers = self._process.stdout
        self.is_lost = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def configure(self, settings: ShardEncoderSettings) -> None:
        """Says how it writes, once, before the first shard.

        Raises:
            OSError: The process has ended.
        """
        self._send(settings)

    def write(self, work: ShardWork) -> ShardResult:
        """Writes a shard; see `ShardEncoder.write`.

        Raises:
            HelperLostError: The process was ended, or could not even start.
            Exception: What writing the shard raises.
        """
        try:
            self._send(work)
            # Nothing but what `serve` makes comes through this pipe.
            made, text, usage = pickle.load(self._answers)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
            self.is_lost = True
            raise HelperLostError(f"process {self.pid}, which wrote shards, has ended") from error
        usage_counter.add(usage)
        if isinstance(made, Exception):
            raise made from RuntimeError(text)
        assert isinstance(made, ShardResult)
        return made

    def close(self) -> None:
        """Ends the process, be it in the middle of a shard, whose files then do not count."""
        self._process.kill()
        self._process.wait()
        # A thread that waits for an answer, or for its request to be read, has just got an error.
        self._answers.close()
        with contextlib.suppress(OSError):
            self._requests.close()

    def _send(self, request: ShardEncoderSettings | ShardWork) -> None:
        pickle.dump(request, self._requests)
        self._requests.flush()


def serve() -> NoReturn:
    """Writes the shards that come through stdin, until that ends; answers through stdout."""
    # The program ends it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever prints must not come between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.SimpleQueue[ShardEncoderSettings | ShardWork] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, requests), daemon=True).start()
    tune_process()
    settings = requests.get()
    assert isinstance(settings, ShardEncoderSettings)
    encoder = ShardEncoder(settings)
    while True:
        work = requests.get()
        assert isinstance(work, ShardWork)
        made: ShardResult | Exception
        text = ""
        try:
            made = encoder.write(work)
        except Exception as error:  # noqa: BLE001  # The program is to see it.
            made, text = picklable(error), traceback.format_exc()
        pickle.dump((made, text, usage_counter.take()), answers)
        answers.flush()


def _receive(
    file: BinaryIO, requests: queue.SimpleQueue[ShardEncoderSettings | ShardWork]
) -> NoReturn:
    try:
        while True:
            requests.put(pickle.load(file))
    finally:
        # The program has ended, perhaps in the middle of a word: nothing more may be written.
        os._exit(1)


def picklable(error: Exception) -> Exception:
    """Returns an error, or its words where it would not come out of a pickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # Whatever it makes of its arguments.
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
