"""The command `shardbeam`. Help and version answer without any heavy import."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.flags import (
    BUILD_COMMANDS,
    UsageError,
    build_parser,
    formats_parser,
    sample_parser,
    show_parser,
    top_parser,
)
from pipelines.logs import configure_logging, log_everything
from pipelines.terminal import escape, write_stdout

if TYPE_CHECKING:
    from pipelines.arguments import BuildArguments, SampleArguments, ShowArguments

_FAILED = 1
_USAGE = 2
_HELD = 4
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        argv: The words after the program's name; by default those that it was started with.

    Returns:
        The exit code: 0 done (or nothing to do), 1 failed, 2 wrong usage or config, 3 more
        rejects than the config tolerates, 4 another run writes to the output, 130 interrupted.
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
    try:
        return _run(arguments)
    except KeyboardInterrupt as interrupt:
        _complain(
            str(interrupt) or "interrupted; a build goes on from here when it is started again"
        )
        return _INTERRUPTED


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


def _run(words: Sequence[str]) -> int:
    from configs.load import ConfigError
    from pipelines.arguments import (
        FormatsArguments,
        SampleArguments,
        ShowArguments,
        parse_arguments,
    )
    from transforms.process import without_collector

    configure_logging()
    try:
        with without_collector():
            arguments = parse_arguments(words)
    except (UsageError, ConfigError) as error:
        _complain(str(error))
        return _USAGE
    if isinstance(arguments, FormatsArguments):
        return _run_formats()
    if isinstance(arguments, ShowArguments):
        return _run_show(arguments)
    if isinstance(arguments, SampleArguments):
        return _run_sample(arguments)
    return _run_build(arguments)


def _run_build(arguments: BuildArguments) -> int:
    from transforms.process import without_collector

    with without_collector():
        from configs.load import ConfigError
        from pipelines.output_state import OutputError
        from pipelines.run import run_build, run_plan
        from pipelines.run_error import RunError
        from transforms.errors import InputError
        from transforms.formats.load import FormatError
        from transforms.output.lease import LeaseError

    if arguments.verbose:
        log_everything()
    started_s = time.monotonic()
    try:
        return run_build(arguments) if arguments.command == "build" else run_plan(arguments)
    except (ConfigError, FormatError, OutputError, UsageError) as error:
        message, code = str(error), _USAGE
    except (InputError, RunError) as error:
        message, code = str(error), _FAILED
    except LeaseError as error:
        message, code = str(error), _HELD
    _complain(message)
    if arguments.json:
        _print_failure(
            message, code=code, arguments=arguments, wall_time_s=time.monotonic() - started_s
        )
    return code


def _print_failure(
    message: str, *, code: int, arguments: BuildArguments, wall_time_s: float
) -> None:
    from pipelines.summary import Summary, print_summary
    from transforms.output.outcome import Outcome, Status

    summary = Summary(
        outcome=Outcome(status=Status.FAILED, splits={}, message=message),
        output=arguments.config.output.path,
        exit_code=code,
        wall_time_s=wall_time_s,
    )
    print_summary(summary, as_json=True)


def _run_formats() -> int:
    from pipelines.formats_table import render_formats
    from pipelines.tables import stdout_layout

    write_stdout(render_formats(layout=stdout_layout()))
    return 0


def _run_show(arguments: ShowArguments) -> int:
    from pipelines.show import show_dataset
    from transforms.errors import InputError

    try:
        show_dataset(arguments.path, split=arguments.split, limit=arguments.limit)
    except InputError as error:
        _complain(str(error))
        return _FAILED
    return 0


def _run_sample(arguments: SampleArguments) -> int:
    from pipelines.progress import ProgressMonitor, ProgressSnapshot
    from pipelines.sample import write_shapes

    done = 0

    def report(images: int) -> None:
        nonlocal done
        done = images

    def read() -> ProgressSnapshot:
        return ProgressSnapshot(images_done=done, images_total=arguments.images)

    try:
        with ProgressMonitor(read=read, stream=sys.stderr):
            summary = write_shapes(
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
        f"wrote {summary.images:,} images with {summary.instances:,} annotated shapes, and a "
        f"class folder for each kind of shape, to {escape(str(summary.output))}\n"
    )
    return 0


def _complain(message: str) -> None:
    sys.stderr.write(f"shardbeam: error: {escape(message)}\n")
