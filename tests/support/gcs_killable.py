"""Builds in processes of their own that cost no import: forked from one that has imported all."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

# What makes this module worth to be preloaded.
import shardbeam.pipelines.run
import shardbeam.transforms.storage.gcs
from shardbeam.pipelines.cli import main
from tests.support.gcs_timings import Timings, set_timings

__all__ = ["shardbeam", "start_build"]


def start_build(words: Sequence[str], *, host: str, timings: Timings) -> BaseProcess:
    """Starts the command in a process; its exit code is the command's.

    Args:
        words: The command line.
        host: Where the storage listens.
        timings: How patient it is.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_run, args=(list(words), host, timings), daemon=True)
    process.start()
    return process


def _run(words: list[str], host: str, timings: Timings) -> None:
    os.environ["STORAGE_EMULATOR_HOST"] = host
    set_timings(timings)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    # At once: what Beam's threads would do at the end belongs to a process that was not killed.
    os._exit(main(words))
