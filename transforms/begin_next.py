"""Beginning the next piece of work while the last one still ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")


class HandedOut:
    """Knows when work that runs in a thread has handed out the last of its items."""

    def __init__(self) -> None:
        # An interrupt in the middle of an Event's own code could leave its lock taken, and whoever
        # sets it would wait for ever.
        self._last: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def watch(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items of the work.

        Raises:
            CancelledError: Whoever waited was interrupted.
        """
        for item in items:
            if self._stopped.is_set():
                raise CancelledError
            yield item
        self._last.put(None)

    def wait(self, work: Future[Any]) -> None:
        """Waits until the last item is handed out, or the work has ended in another way.

        Raises:
            KeyboardInterrupt: As it comes; the work is then stopped at its next item.
        """
        work.add_done_callback(lambda _: self._last.put(None))
        try:
            self._last.get()
        except BaseException:
            self._stopped.set()
            raise
