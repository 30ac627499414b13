"""Beginning the next piece of work while the last one still ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")


class HandedOut:
    """Knows when work that runs in a thread has handed out the last of its items."""

    def __init__(self) -> None:
        self._last = threading.Event()
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
        self._last.set()

    def wait(self, work: Future[Any]) -> None:
        """Waits until the last item is handed out, or the work has ended in another way.

        Raises:
            KeyboardInterrupt: As it comes; the work is then stopped at its next item.
        """
        work.add_done_callback(lambda _: self._last.set())
        try:
            self._last.wait()
        except BaseException:
            self._stopped.set()
            raise
