"""Running pipelines so that SIGINT and SIGTERM end them as such, whatever a runner says."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import apache_beam as beam

from shardbeam.pipelines.usage import UsageMeter


@contextlib.contextmanager
def interrupted_with(words: str) -> Iterator[None]:
    """Says what an interrupt within the context means, where it is not what it means at home."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(words) from None


def run_to_end(pipeline: beam.Pipeline, *, meter: UsageMeter | None = None) -> None:
    """Runs a pipeline to its end, and adds up what its workers counted.

    Raises:
        KeyboardInterrupt: It was interrupted; where a job server runs it, that was told.
        Exception: Of any type, as the runner makes it: a step has failed.
    """
    result = pipeline.run()
    try:
        result.wait_until_finish()
    except KeyboardInterrupt:
        # Where this process runs the job, there is nothing left to cancel.
        with contextlib.suppress(Exception):
            result.cancel()
        raise
    if meter is not None:
        meter.add_result(result)


def catch_error(run: Callable[[], None]) -> Exception | None:
    """Runs a pipeline to its end; returns the error it ended with.

    Raises:
        KeyboardInterrupt: The process got SIGINT or SIGTERM.
    """
    with interruptible() as interrupted:
        try:
            run()
        except Exception as error:  # Of whatever type: runners change it.
            if interrupted.is_set():
                raise KeyboardInterrupt from error
            return error
    return None


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Notes SIGINT and SIGTERM, whose KeyboardInterrupt a runner may turn into another error."""
    interrupted = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        interrupted.set()
        # Each step that it hits on its way out would be an error to Beam.
        logging.disable()
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        logging.disable(logging.NOTSET)
