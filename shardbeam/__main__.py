"""The command `shardbeam`; `python -m shardbeam` is the same."""

import sys

from shardbeam.pipelines.cli.logging import open_standard_streams, render_interrupt, write_traceback
from shardbeam.pipelines.interrupts import end_on_signals


def console() -> None:
    """Runs the command, and ends the process with its exit code."""
    open_standard_streams()
    sys.excepthook = write_traceback
    with end_on_signals(render_interrupt):
        # Imported here, so that a signal during the imports ends the command, too.
        from shardbeam.pipelines.cli.main import main

        code = main()
    sys.exit(code)


if __name__ == "__main__":
    console()
