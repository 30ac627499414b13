"""A worker process that answers calls, one at a time."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar, cast

Question = TypeVar("Question")
Answer = TypeVar("Answer")

# If two threads hid `__main__` at once, the second would restore the first one's substitute.
_hiding = threading.Lock()


class WorkerLostError(Exception):
    """A worker process has ended without an answer."""


class Worker(Generic[Question, Answer]):
    """A process that answers calls.

    It imports no Beam, no TensorFlow and none of the program's own code. It ends when the program
    ends, however that happens.

    Args:
        prepare: Called in the worker process; returns the function that answers, and must not
            raise.
        arguments: The arguments of `prepare`.
        task: What the process did, in the past tense, for errors: "wrote shards".

    Raises:
        OSError: The process cannot be started.
        AssertionError: This process is itself a daemon of `multiprocessing`, which may not start
            processes.
    """

    def __init__(
        self, prepare: Callable[..., Callable[[Question], Answer]], *arguments: object, task: str
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, prepare, arguments), daemon=True
        )
        self._task = task
        with theirs, _without_main(), without_interrupts():
            self._process.start()

    def call(self, question: Question) -> Answer:
        """Sends a question and waits for the answer.

        Raises:
            WorkerLostError: The process was killed, or did not start.
        """
        try:
            self._connection.send(question)
            while isinstance(answer := self._connection.recv(), logging.LogRecord):
                logging.getLogger(answer.name).handle(answer)
        except (EOFError, OSError) as error:
            pid = self._process.pid
            raise WorkerLostError(f"process {pid}, which {self._task}, has ended") from error
        return cast(Answer, answer)

    def close(self) -> None:
        """Ends the process, perhaps in the middle of an answer."""
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hides `__main__` from `multiprocessing`, which would run it again in the worker process.

    A script without a `__main__` guard would start its build again there, and a program read from
    stdin cannot be run again.
    """
    with _hiding:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Blocks SIGINT in processes started inside the context, because the program ends them."""
    # Start multiprocessing's resource tracker before: starting it later would unblock the signal.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    connection: Connection,
    prepare: Callable[..., Callable[[Any], Any]],
    arguments: tuple[Any, ...],
) -> None:
    """Answers the questions that come through the pipe; runs in the worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Errors travel as answers. Output of libraries would only disturb the program's own lines.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    send = _sender(connection)
    # The program logs what this process logs.
    logging.getLogger(__name__.partition(".")[0]).addHandler(_LogSender(send))
    answer = prepare(*arguments)
    while True:
        send(answer(connection.recv()))


def _sender(connection: Connection) -> Callable[[object], None]:
    lock = threading.Lock()

    def send(message: object) -> None:
        # Any thread may log.
        with lock:
            connection.send(message)

    return send


class _LogSender(logging.handlers.QueueHandler):
    """Sends log records to the program that started this process."""

    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__(queue.SimpleQueue())
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        """Sends a record, which QueueHandler has made picklable."""
        self._send(record)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def picklable(error: Exception) -> Exception:
    """Returns an error; if it cannot be pickled and unpickled, a RuntimeError with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # The error's own constructor may raise anything.
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
