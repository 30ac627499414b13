"""What a signal that ends the command must know, and may not interrupt.

`signals` handles them. Code below the command line registers here what the line about an interrupt
says, what has to be removed, and a few renames that belong together.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

NOTHING_WRITTEN = "interrupted; nothing was written"


class _State:
    """The state that `signals` reads.

    Attributes:
        words: What the line about an interrupt says.
        ask: Returns something better to say.
        actions: Called on a signal, the last one first.
        delaying: Held while a signal has to wait.
        handler: Handles the signals that end the command, if it has been installed.
    """

    def __init__(self) -> None:
        self.words = NOTHING_WRITTEN
        self.ask: Callable[[], str] | None = None
        self.actions: list[Callable[[], None]] = []
        self.delaying = threading.Lock()
        self.handler: Callable[..., None] | None = None


state = _State()


def say_when_interrupted(words: str, *, ask: Callable[[], str] | None = None) -> None:
    """Sets what the line about an interrupt says from now on.

    Args:
        words: What it says if `ask` is None, fails, or takes longer than 1.5 s.
        ask: Returns what it says; called in its own thread when the signal comes.
    """
    state.words, state.ask = words, ask


@contextlib.contextmanager
def do_when_interrupted(action: Callable[[], None]) -> Iterator[None]:
    """Calls a quick function on a signal inside the context, after the child processes ended."""
    state.actions.append(action)
    try:
        yield
    finally:
        state.actions.remove(action)


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Lets signals wait until the context ends, for up to 10 s.

    It is for a few renames that belong together. After a signal, no other context begins.
    """
    with state.delaying:
        yield


def handles_signals() -> bool:
    """Whether `end_on_signals` of `signals` is in effect."""
    return state.handler is not None and signal.getsignal(signal.SIGTERM) is state.handler
