"""SIGINT, SIGTERM and SIGHUP end the command at once, with one line that says what is kept.

A killed build loses nothing, because the next run finds its finished shards. So no work is
finished first: a thread waits for the signals, kills the child processes, writes the line and ends
the process. Nothing that the main thread does or has locked can delay that, except for the few
renames inside `delay_interrupts`, and these for seconds only. After the signal, the main thread
neither writes a line nor decides the exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

EXIT_CODE = 130
NOTHING_WRITTEN = "interrupted; nothing was written"

# How long storage may take to report progress and to release a lease.
_ASKING_S = 1.5
# How long the main thread may stay inside `delay_interrupts`; a disk may hang.
_DELAY_S = 10.0


class _State:
    """What a signal needs to know.

    Attributes:
        words: What the line says.
        ask: Returns something better to say.
        actions: Called on a signal, the last one first.
        delaying: Held while a signal has to wait.
        signals: The signals that end the command.
        interrupted: Whether one of them has come.
    """

    def __init__(self) -> None:
        self.words = NOTHING_WRITTEN
        self.ask: Callable[[], str] | None = None
        self.actions: list[Callable[[], None]] = []
        self.delaying = threading.Lock()
        self.signals: tuple[signal.Signals, ...] = ()
        self.interrupted = False


_state = _State()


def say_when_interrupted(words: str, *, ask: Callable[[], str] | None = None) -> None:
    """Sets what the line about an interrupt says from now on.

    Args:
        words: What it says if `ask` is None, fails, or takes longer than 1.5 s.
        ask: Returns what it says; called in its own thread when the signal comes.
    """
    _state.words, _state.ask = words, ask


@contextlib.contextmanager
def do_when_interrupted(action: Callable[[], None]) -> Iterator[None]:
    """Calls a quick function on a signal inside the context, after the child processes ended."""
    _state.actions.append(action)
    try:
        yield
    finally:
        _state.actions.remove(action)


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Lets signals wait until the context ends, for up to 10 s.

    It is for a few renames that belong together. After a signal, no other context begins.
    """
    with _state.delaying:
        yield


def handles_signals() -> bool:
    """Whether `end_on_signals` is in effect."""
    return signal.getsignal(signal.SIGTERM) is _note


@contextlib.contextmanager
def end_on_signals(render: Callable[[str], str]) -> Iterator[None]:
    """Makes SIGINT, SIGTERM and SIGHUP end this process with exit code 130, until it exits.

    SIGHUP stays ignored where it is ignored at the start, as by `nohup`.

    It is for the entry point of a command, before any other import. After the context the process
    only exits. That may take minutes, because Python joins threads that wait for storage; a signal
    ends it then, too.

    Args:
        render: Makes the line for stderr. It imports nothing, because the main thread may be
            halfway through the same import.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Python writes the number of each signal that has a Python handler to this pipe.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _state.signals = (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        _state.signals += (signal.SIGHUP,)
    for number in _state.signals:
        signal.signal(number, _note)
    threading.Thread(target=_end, args=(reader, render), name="signals", daemon=True).start()
    # Exit functions run in reverse order, so this one runs after those of libraries.
    atexit.register(_stop_handling)
    try:
        yield
    finally:
        _leave_end_to_thread()


def _stop_handling() -> None:
    # Python is about to remove its handlers; then a signal would end the process with another exit
    # code.
    for number in _state.signals:
        signal.signal(number, signal.SIG_IGN)
    _leave_end_to_thread()


def _leave_end_to_thread() -> None:
    if _state.interrupted:
        # The main thread is done; the signal thread ends the process.
        threading.Event().wait()


def _note(number: int, frame: FrameType | None) -> None:
    del number, frame
    _state.interrupted = True


def _end(reader: int, render: Callable[[str], str]) -> None:
    os.read(reader, 1)
    stderr = 2
    try:
        # Whatever fails from now on fails because of the signal, so only this thread writes.
        with contextlib.suppress(OSError):
            stderr = os.dup(2)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
        # It is never released.
        _state.delaying.acquire(timeout=_DELAY_S)
        line = render(_last_words())
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        # The main thread, whose files are being removed, leaves its contexts meanwhile.
        for action in [*_state.actions][::-1]:
            with contextlib.suppress(Exception):
                action()
        # Erase a live progress line, and show the cursor that it hid.
        wipe = "\r\x1b[2K\x1b[?25h" if os.isatty(stderr) else ""
        with contextlib.suppress(OSError):
            os.write(stderr, f"{wipe}{line}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(EXIT_CODE)


def _last_words() -> str:
    words, ask = _state.words, _state.ask
    if ask is None:
        return words
    answers = [words]

    def answer() -> None:
        with contextlib.suppress(Exception):
            answers.append(ask())

    thread = threading.Thread(target=answer, daemon=True)
    try:
        thread.start()
        thread.join(_ASKING_S)
    except RuntimeError:
        # From 3.12 on, Python starts no threads while it exits.
        answer()
    return answers[-1]


def _children() -> set[int]:
    """Finds the child processes, including those that libraries have started."""
    children: set[int] = set()
    # The main thread may be importing multiprocessing, or starting a process.
    with contextlib.suppress(KeyError, AttributeError, RuntimeError):
        processes = sys.modules["multiprocessing"].active_children()
        children |= {process.pid for process in processes}
    # Linux only; elsewhere, processes of libraries end when they notice that this one is gone.
    with contextlib.suppress(OSError):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                # State and parent follow the name, which may contain anything.
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    children.add(int(entry))
    return children
