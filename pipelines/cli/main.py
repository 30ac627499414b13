"""The command `shardbeam`. Help and version answer without any heavy import."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from shardbeam.configs.problem import ShardbeamError
from shardbeam.pipelines.cli.arguments import named_format, parse_arguments
from shardbeam.pipelines.cli.commands import (
    COMMANDS,
    Arguments,
    BuildArguments,
    ConvertArguments,
    RunArguments,
)
from shardbeam.pipelines.cli.flags import describe_format, make_parser
from shardbeam.pipelines.cli.logging import (
    configure_logging,
    log_everything,
    wants_json_log,
    write_error,
    write_stderr,
    write_stdout,
    writes_json,
)
from shardbeam.pipelines.failures import UsageError, explain, shortage_error
from shardbeam.transforms.core.cpus import reachable_cpus
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.garbage import without_collector
from shardbeam.transforms.core.memory import address_space_limit, has_room
from shardbeam.transforms.storage.local import check_encoding

# Commands that answer at once.
_QUICK = {"formats", "show"}
_RUNS_BEAM = {name for name, kind in COMMANDS.items() if "beam_options" in kind.__struct_fields__}
# Address space that Beam, its libraries and threads need before the first image is decoded.
# Each CPU has a thread, with a stack and an arena of glibc.
_ROOM_BYTES, _ROOM_BYTES_PER_CPU = 1_000_000_000, 16_000_000

_FAILED = ShardbeamError.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    It leaves signal handlers alone: `shardbeam.__main__` sets them.

    Args:
        argv: The words after the program's name; by default those of `sys.argv`.

    Returns:
        The exit code: 0 done (or nothing to do), 1 failed, 2 wrong usage or config, 3 too many
        rejects, or not what the config expects, 4 another run writes to the output, 5 `verify`
        has found damage.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with configure_logging(as_json=wants_json_log(words)):
        return _run(words)


def _print_help(words: Sequence[str]) -> bool:
    """Prints help or the version on stdout, if a command line asks for it."""
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


def _run(words: Sequence[str]) -> int:
    started_s = time.monotonic()
    arguments: Arguments | None = None
    try:
        if _print_help(words):
            return 0
        _check_encoding()
        if _RUNS_BEAM & set(words[:1]):
            _check_room()
        with _show_progress(words):
            with without_collector():
                arguments = parse_arguments(words)
            if isinstance(arguments, RunArguments) and arguments.verbose:
                log_everything()
            with without_collector():
                run = _load_command(arguments)
            return run(arguments) or 0
    except Exception as raised:
        error = explain(raised)
        # None for a bug.
        code = error.exit_code if isinstance(error, ShardbeamError) else None
        if code is None and not writes_json():
            raise
        build = arguments if isinstance(arguments, (BuildArguments, ConvertArguments)) else None
        if writes_json() or (build is not None and build.json):
            _print_failure(error, code=code, build=build, started_s=started_s)
        else:
            write_error(str(error))
        return _FAILED if code is None else code


def _show_progress(words: Sequence[str]) -> AbstractContextManager[None]:
    """Shows the progress of a command line, even while Beam is imported and flags are parsed."""
    command = next((word for word in words if word in COMMANDS), None)
    if command is None or command in _QUICK:
        return nullcontext()
    from shardbeam.pipelines.cli.progress import show_progress

    return show_progress()


def _load_command(arguments: Arguments) -> Callable[[Arguments], int | None]:
    """Imports the function that runs a command: Beam and rich take a while."""
    module, _, function = arguments.RUN.partition(":")
    run: Callable[[Arguments], int | None] = getattr(
        importlib.import_module(f"shardbeam.pipelines.{module}"), function
    )
    return run


def _check_room() -> None:
    """Checks the limit of address space before Beam is imported: its libraries abort at the limit.

    Raises:
        RunError: The limit is too low.
    """
    room_bytes = _ROOM_BYTES + reachable_cpus() * _ROOM_BYTES_PER_CPU
    if address_space_limit() is not None and not has_room(room_bytes):
        raise shortage_error(f"this command needs at least {room_bytes // 1_000_000:,} MB")


def _print_failure(
    error: Exception,
    *,
    code: int | None,
    build: BuildArguments | ConvertArguments | None,
    started_s: float,
) -> None:
    """Prints the summary of a run that ended with an error; for a bug, with the traceback."""
    from shardbeam.pipelines.cli.summary import print_summary
    from shardbeam.pipelines.result import PlanResult
    from shardbeam.transforms.dataset.outcome import Status

    result = PlanResult(
        status=Status.FAILED,
        splits={},
        message=str(error) if code is not None else f"{type(error).__name__}: {error}",
        output=build.output_path if build else "",
        wall_time_s=time.monotonic() - started_s,
    )
    print_summary(
        result,
        exit_code=_FAILED if code is None else code,
        trace=traceback.format_exc() if code is None else "",
        as_json=bool(build and build.json),
    )
