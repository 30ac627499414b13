"""The command `shardbeam`. Help and version answer without any heavy import."""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING

from shardbeam.pipelines.flags import (
    BUILD_COMMANDS,
    UsageError,
    build_parser,
    formats_parser,
    sample_parser,
    show_parser,
    top_parser,
    wants_json_log,
)
from shardbeam.pipelines.json_log import everything_as_json
from shardbeam.pipelines.logs import configure_logging, log_everything
from shardbeam.pipelines.terminal import escape, write_stdout

if TYPE_CHECKING:
    from shardbeam.pipelines.arguments import BuildArguments, SampleArguments, ShowArguments
    from shardbeam.pipelines.summary import Summary

_FAILED = 1
_USAGE = 2
_HELD = 4
_INTERRUPTED = 128 + signal.SIGINT
_INTERRUPTED_WORDS = "interrupted; a build goes on from here when it is started again"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        argv: The words after the program's name; by default those that it was started with.

    Returns:
        The exit code: 0 done (or nothing to do), 1 failed, 2 wrong usage or config, 3 more
        rejects than the config tolerates, 4 another run writes to the output, 130 interrupted
        (by SIGINT or SIGTERM).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        sys.stderr.write(_help(arguments))
        return _USAGE
    if {"-h", "--help"} & set(arguments):
        write_stdout(_help(arguments))
        return 0
    if arguments == ["--version"]:
        write_stdout(f"shardbeam {_version()}\n")
        return 0
    json_log = wants_json_log(arguments)
    started_s = time.monotonic()
    try:
        with _sigterm_interrupts(), everything_as_json() if json_log else nullcontext():
            return _run(arguments, json_log=json_log)
    except KeyboardInterrupt as interrupt:
        message = str(interrupt) or _INTERRUPTED_WORDS
        return _end(message, code=_INTERRUPTED, started_s=started_s, json_log=json_log)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Makes SIGTERM what Ctrl-C is, as long as this is the main thread and no run does that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _help(arguments: Sequence[str]) -> str:
    for word in arguments:
        if word in BUILD_COMMANDS:
            return build_parser(command=word).format_help()
        if word == "formats":
            return formats_parser().format_help()
        if word == "show":
            return show_parser().format_help()
        if word == "sample":
            return sample_parser().format_help()
    return top_parser().format_help()


def _version() -> str:
    import importlib.metadata

    return importlib.metadata.version("shardbeam")


def _run(words: Sequence[str], *, json_log: bool) -> int:
    from shardbeam.configs.load import ConfigError
    from shardbeam.pipelines.arguments import (
        FormatsArguments,
        SampleArguments,
        ShowArguments,
        parse_arguments,
    )
    from shardbeam.transforms.core.process import without_collector

    configure_logging(as_json=json_log)
    started_s = time.monotonic()
    try:
        with without_collector():
            arguments = parse_arguments(words)
    except (UsageError, ConfigError) as error:
        return _end(str(error), code=_USAGE, started_s=started_s, json_log=json_log)
    if isinstance(arguments, FormatsArguments):
        return _run_formats()
    if isinstance(arguments, ShowArguments):
        return _run_show(arguments)
    if isinstance(arguments, SampleArguments):
        return _run_sample(arguments)
    return _run_build(arguments)


def _run_build(arguments: BuildArguments) -> int:
    from shardbeam.transforms.core.process import without_collector

    with without_collector():
        from shardbeam.configs.load import ConfigError
        from shardbeam.pipelines.run import run_build, run_plan
        from shardbeam.pipelines.run_error import RunError
        from shardbeam.pipelines.versions import OutputError
        from shardbeam.transforms.core.errors import InputError
        from shardbeam.transforms.dataset.lease import LeaseError
        from shardbeam.transforms.formats.load import FormatError

    if arguments.verbose:
        log_everything()
    started_s = time.monotonic()
    trace = ""
    try:
        return run_build(arguments) if arguments.command == "build" else run_plan(arguments)
    except (ConfigError, FormatError, OutputError, UsageError) as error:
        message, code = str(error), _USAGE
    except (InputError, RunError) as error:
        message, code = str(error), _FAILED
    except LeaseError as error:
        message, code = str(error), _HELD
    except KeyboardInterrupt as interrupt:
        if not arguments.json_log:
            raise
        message, code = str(interrupt) or _INTERRUPTED_WORDS, _INTERRUPTED
    except Exception as error:
        if not arguments.json_log:
            raise
        # In one object, not in a line each.
        message, code = f"{type(error).__name__}: {error}", _FAILED
        trace = traceback.format_exc()
    if not arguments.json_log:
        _complain(message)
    if arguments.json or arguments.json_log:
        from shardbeam.pipelines.summary import print_summary

        summary = _end_without_outcome(
            message,
            code=code,
            output=arguments.config.output.path,
            started_s=started_s,
            trace=trace,
        )
        print_summary(summary, as_json=arguments.json, json_log=arguments.json_log)
    return code


def _end(message: str, *, code: int, started_s: float, json_log: bool) -> int:
    """Ends a command that has not even begun to run; returns its exit code."""
    if not json_log:
        _complain(message)
        return code
    from shardbeam.pipelines.summary import log_summary

    log_summary(_end_without_outcome(message, code=code, output="", started_s=started_s))
    return code


def _end_without_outcome(
    message: str, *, code: int, output: str, started_s: float, trace: str = ""
) -> Summary:
    from shardbeam.pipelines.summary import Summary
    from shardbeam.transforms.dataset.outcome import Outcome, Status

    return Summary(
        outcome=Outcome(status=Status.FAILED, splits={}, message=message),
        output=output,
        exit_code=code,
        wall_time_s=time.monotonic() - started_s,
        interrupted=code == _INTERRUPTED,
        trace=trace,
    )


def _run_formats() -> int:
    from shardbeam.pipelines.formats_table import render_formats
    from shardbeam.pipelines.tables import stdout_layout

    write_stdout(render_formats(layout=stdout_layout()))
    return 0


def _run_show(arguments: ShowArguments) -> int:
    from shardbeam.pipelines.show import show_dataset
    from shardbeam.transforms.core.errors import InputError

    try:
        show_dataset(arguments.path, split=arguments.split, limit=arguments.limit)
    except InputError as error:
        _complain(str(error))
        return _FAILED
    return 0


def _run_sample(arguments: SampleArguments) -> int:
    from shardbeam.pipelines.progress import ProgressMonitor, ProgressSnapshot
    from shardbeam.pipelines.sample import write_shapes

    done = 0

    def report(images: int) -> None:
        nonlocal done
        done = images

    def read() -> ProgressSnapshot:
        return ProgressSnapshot(images_done=done, images_total=arguments.images)

    try:
        with ProgressMonitor(read=read, stream=sys.stderr):
            shapes = write_shapes(
                output=arguments.output,
                images=arguments.images,
                seed=arguments.seed,
                workers=arguments.workers,
                width=arguments.width,
                height=arguments.height,
                report=report,
            )
    except (FileExistsError, ValueError) as error:
        _complain(str(error))
        return _USAGE
    write_stdout(
        f"wrote {arguments.images:,} images with {shapes:,} annotated shapes, and a class folder "
        f"for each kind of shape, to {escape(str(arguments.output))}\n"
    )
    return 0


def _complain(message: str) -> None:
    sys.stderr.write(f"shardbeam: error: {escape(message)}\n")
