"""The command `shardbeam`. Help and version answer without any heavy import."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec

from shardbeam.configs.problem import ShardbeamError
from shardbeam.pipelines.arguments import named_format, parse_arguments
from shardbeam.pipelines.commands import (
    COMMANDS,
    BuildArguments,
    DiffArguments,
    FormatsArguments,
    InitArguments,
    ReportArguments,
    SampleArguments,
    ShowArguments,
    StatsArguments,
    VerifyArguments,
)
from shardbeam.pipelines.failures import UsageError, explain, shortage_error
from shardbeam.pipelines.flags import describe_format, make_parser
from shardbeam.pipelines.interrupts import NOTHING_WRITTEN, say_when_interrupted
from shardbeam.pipelines.logs import (
    OWN_LOGGER,
    configure_logging,
    escape,
    everything_as_json,
    log_everything,
    wants_json_log,
    write_error,
    write_stderr,
    write_stdout,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.load import FormatError
from shardbeam.transforms.storage.local import check_encoding

# What Beam takes of addresses, with its libraries and threads, before anything is decoded: with
# less, libraries in C abort here and there. Of each CPU's thread the stack and what glibc keeps.
_RUNS_BEAM = frozenset({"build", "plan", "verify", "stats"})
_ROOM_BYTES, _ROOM_BYTES_PER_CPU = 1_000_000_000, 16_000_000

_FAILED = 1
_USAGE = 2
_HELD = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Signals stay as they are: what they do to the command is set in `shardbeam.__main__`.

    Args:
        argv: The words after the program's name; by default those that it was started with.

    Returns:
        The exit code: 0 done (or nothing to do), 1 failed, 2 wrong usage or config, 3 more
        rejects than the config tolerates, or a dataset that is not what it expects, 4 another run
        writes to the output, 5 `verify` has found damage.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    json_log = wants_json_log(words)
    with everything_as_json() if json_log else nullcontext():
        configure_logging(as_json=json_log)
        return _run(words, json_log=json_log)


def _print_help(words: Sequence[str]) -> bool:
    """Prints help or the version on stdout, where a command line asks for it."""
    if {"-h", "--help"} & set(words):
        write_stdout(_help(words))
        return True
    if words == ["--version"]:
        import importlib.metadata

        write_stdout(f"shardbeam {importlib.metadata.version('shardbeam')}\n")
        return True
    if not words:
        write_stderr(_help(words))
    return False


def _check_encoding() -> None:
    try:
        check_encoding()
    except InputError as error:
        raise UsageError(str(error)) from error


def _help(words: Sequence[str]) -> str:
    name = named_format(words)
    if name is not None:
        return describe_format(name, command=words[words.index(name) - 1])
    return make_parser(next((word for word in words if word in COMMANDS), "")).format_help()


def _run(words: Sequence[str], *, json_log: bool) -> int:
    from shardbeam.transforms.core.process import without_collector

    started_s = time.monotonic()
    build = None
    try:
        if _print_help(words):
            return 0
        _check_encoding()
        if _RUNS_BEAM & set(words[:1]):
            _check_room()
        with without_collector():
            arguments = parse_arguments(words)
        if isinstance(arguments, BuildArguments):
            build = arguments
            return _run_build(build)
        if isinstance(arguments, SampleArguments):
            return _run_sample(arguments)
        if isinstance(arguments, InitArguments):
            from shardbeam.pipelines.init import run_init

            return run_init(arguments)
        if isinstance(arguments, VerifyArguments):
            from shardbeam.pipelines.verify import run_verify

            return run_verify(arguments)
        if isinstance(arguments, StatsArguments):
            from shardbeam.pipelines.stats import run_stats

            run_stats(arguments)
            return 0
        if isinstance(arguments, ReportArguments):
            from shardbeam.pipelines.report.command import run_report

            run_report(arguments)
            return 0
        if isinstance(arguments, DiffArguments):
            from shardbeam.pipelines.diff import run_diff

            run_diff(arguments)
            return 0
        # Imported here, as rich takes a while.
        from shardbeam.pipelines.show import run_show, show_formats

        if isinstance(arguments, ShowArguments):
            run_show(arguments)
        else:
            assert isinstance(arguments, FormatsArguments)
            show_formats(arguments.format)
        return 0
    except Exception as raised:
        error = explain(raised)
        code = _exit_code(error)
        if code is None and not json_log:
            raise
        if json_log or (build is not None and build.json):
            _print_failure(error, code=code, build=build, started_s=started_s, json_log=json_log)
        else:
            write_error(str(error))
        return _FAILED if code is None else code


def _check_room() -> None:
    """Looks for room before Beam is imported: libraries in C abort the process where it ends.

    Raises:
        RunError: There is too little.
    """
    from shardbeam.transforms.core.memory import address_space_limit, has_room
    from shardbeam.transforms.core.process import usable_cpus

    room_bytes = _ROOM_BYTES + usable_cpus() * _ROOM_BYTES_PER_CPU
    if address_space_limit() is not None and not has_room(room_bytes):
        raise shortage_error(f"this command needs at least {room_bytes // 1_000_000:,} MB")


def _exit_code(error: Exception) -> int | None:
    """Returns the exit code of an error whose message is for users; None for any other error."""
    from shardbeam.configs.load import ConfigError
    from shardbeam.transforms.dataset.lease import LeaseError

    if isinstance(error, (ConfigError, FormatError, UsageError)):
        return _USAGE
    if isinstance(error, LeaseError):
        return _HELD
    return _FAILED if isinstance(error, ShardbeamError) else None


def _print_failure(
    error: Exception,
    *,
    code: int | None,
    build: BuildArguments | None,
    started_s: float,
    json_log: bool,
) -> None:
    """Prints the summary of a run that ended without one; that of a bug holds the traceback."""
    from shardbeam.pipelines.result import PlanResult
    from shardbeam.pipelines.summary import print_summary
    from shardbeam.transforms.dataset.outcome import Status

    result = PlanResult(
        status=Status.FAILED,
        splits={},
        message=str(error) if code is not None else f"{type(error).__name__}: {error}",
        output=build.config.output.path if build else "",
        wall_time_s=time.monotonic() - started_s,
    )
    print_summary(
        result,
        exit_code=_FAILED if code is None else code,
        trace=traceback.format_exc() if code is None else "",
        as_json=bool(build and build.json),
        json_log=json_log,
    )


def _run_build(arguments: BuildArguments) -> int:
    from shardbeam.transforms.core.process import without_collector

    with without_collector():
        from shardbeam.pipelines.run import run_build, run_plan

    if arguments.verbose:
        log_everything()
        logging.getLogger(OWN_LOGGER).info(
            "%s of %s into %s",
            arguments.command,
            arguments.config.name,
            escape(arguments.config.output.path),
        )
    return run_build(arguments) if arguments.command == "build" else run_plan(arguments)


def _run_sample(arguments: SampleArguments) -> int:
    from shardbeam.pipelines.progress import ProgressMonitor, ProgressSnapshot
    from shardbeam.pipelines.sample import write_shapes

    output = Path(arguments.output)
    done = [0]

    def describe_interrupt() -> str:
        if not (output / "images").exists():
            return NOTHING_WRITTEN
        # The end of its processes may have made the program clear it up already.
        return f"interrupted; {output} may hold a part of the sample: delete it, and draw again"

    say_when_interrupted("interrupted", ask=describe_interrupt)
    try:
        with ProgressMonitor(
            read=lambda: ProgressSnapshot(images_done=done[-1], images_total=arguments.images),
            stream=sys.stderr,
        ):
            shapes = write_shapes(
                report=done.append, **{**msgspec.structs.asdict(arguments), "output": output}
            )
    except FileExistsError as error:
        raise UsageError(str(error)) from error
    write_stdout(
        f"wrote {arguments.images:,} images with {shapes:,} annotated shapes, and a class folder "
        f"for each kind of shape, to {escape(str(output))}\n"
    )
    say_when_interrupted(f"interrupted; the sample is complete: {output}")
    return 0
