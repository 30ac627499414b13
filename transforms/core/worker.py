"""A process beside this one that answers calls, one at a time."""

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

# Of two threads that hide `__main__` at once, the second would put the first one's back.
_hiding = threading.Lock()


class WorkerLostError(Exception):
    """A worker process has ended without an answer."""


class Worker(Generic[Question, Answer]):
    """A process that answers calls.

    It imports no Beam, no TensorFlow and nothing of the program that started it, and it ends when
    that program does, in whatever way.

    Args:
        prepare: Returns the function that answers, and raises nothing: called in the process.
        arguments: What `prepare` is called with.
        task: What it did, in the past: for errors.

    Raises:
        OSError: It cannot be started.
        AssertionError: This process is one of `multiprocessing` that is itself to end with its
            parent: it may start no other.
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
        """Asks, and waits for the answer.

        Raises:
            WorkerLostError: The process was killed, or could not even start.
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

    A script without a guard would build again there; a program from stdin cannot be run again.
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
    """Lets a process that is started inherit that it takes no SIGINT: the program ends it."""
    # Starting this process of `multiprocessing`'s own would unblock the signal.
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
    """Answers what comes through the pipe, in a worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # What goes wrong is an answer; what libraries print must not come between the program's lines.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    send = _sender(connection)
    # What we log ourselves is logged by the program.
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
        """Sends a record, which the base class has made picklable."""
        self._send(record)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def picklable(error: Exception) -> Exception:
    """Returns an error, or its words where it would not come out of a pickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # Its own constructor may raise anything.
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
