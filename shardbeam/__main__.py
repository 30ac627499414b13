"""The command `shardbeam`; `python -m shardbeam` is the same."""

import signal
import sys

from shardbeam.pipelines.interrupts import end_on_signals


def console() -> None:
    """Runs the command, and ends the process with its exit code."""
    end_on_signals()
    # Imported here, so that a signal during the imports ends the command as at any other moment.
    from shardbeam.pipelines.cli import main

    code = main()
    # What is left is to leave: Python would take its handlers away, and a signal would then end
    # the process with an exit code of its own.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    console()
