"""From a command line to what a command needs."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from shardbeam.configs.keys import keys_of
from shardbeam.configs.load import (
    OVERRIDE_ORIGIN,
    ConfigError,
    make_config,
    parse_config,
    ready_configs,
)
from shardbeam.configs.nearest import suggest
from shardbeam.configs.schema import Config
from shardbeam.pipelines.flags import (
    BUILD_COMMANDS,
    COMMANDS,
    DATAFLOW_RUNNER,
    UsageError,
    build_parser,
    flag_name,
    formats_parser,
    sample_parser,
    show_parser,
    source_keys,
)
from shardbeam.pipelines.json_log import JSON
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.load import built_in_formats, find_format
from shardbeam.transforms.storage.base import ANONYMOUS_VARIABLE, is_uri
from shardbeam.transforms.storage.find import storage_for

# The flags that make a config without a file, beside those of the formats, and their keys.
_CONFIG_FLAGS = {
    "output": "output.path",
    "split": "splits",
    "fractions": "fractions",
    "group_by": "group_by",
    "name": "name",
    "version": "version",
}
_DEFAULT_SPLIT = "train"


def _config_flags() -> dict[str, str]:
    return {**{key: f"splits.NAME.{key}" for key in source_keys()}, **_CONFIG_FLAGS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildArguments:
    """What `build` and `plan` are asked to do.

    Attributes:
        command: Which of them.
        config: What to build.
        beam_options: Keyword arguments of Beam's `PipelineOptions`: all that is not as by
            default.
        overwrite: Whether a dataset that is there already is replaced.
        if_changed: Whether nothing is to be done where inputs and config are unchanged.
        reuse: Where the dataset's previous version is, whose unchanged shards are copied; None
            for nowhere.
        processes: Processes that write shards, for each worker process; None for what suits the
            runner.
        threads: Threads that read images in each of them; None for two more than its CPUs.
        read_ahead: Images read from object storage at a time, for each shard; None for the
            default.
        wait: Whether a job on Dataflow is followed to its end; None for in a terminal.
        json: Whether the summary is printed as JSON.
        json_log: Whether what goes to stderr is JSON.
        verbose: Whether Beam's informational messages are logged.
    """

    command: Literal["build", "plan"]
    config: Config
    beam_options: Mapping[str, Any]
    overwrite: bool = False
    if_changed: bool = False
    reuse: str | None = None
    processes: int | None = None
    threads: int | None = None
    read_ahead: int | None = None
    wait: bool | None = None
    json: bool = False
    json_log: bool = False
    verbose: bool = False


@dataclasses.dataclass(frozen=True)
class FormatsArguments:
    """`formats` takes none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleArguments:
    """What `sample shapes` is asked to do.

    Attributes:
        output: Folder to write to.
        images: How many images.
        seed: Decides what is drawn.
        workers: Processes; None for the CPU count.
        width: Width of an image in pixels.
        height: Height of an image in pixels.
    """

    output: Path
    images: int
    seed: int
    workers: int | None
    width: int
    height: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowArguments:
    """What `show` is asked to do.

    Attributes:
        path: A dataset's folder, a folder of TFRecord files, or a TFRecord file.
        split: Which split; None for the first.
        limit: How many Examples.
    """

    path: str
    split: str | None
    limit: int


def parse_arguments(
    arguments: Sequence[str],
) -> BuildArguments | FormatsArguments | ShowArguments | SampleArguments:
    """Parses a command line; flags may stand before, between and after the words.

    Args:
        arguments: All words after the program's name; `--help` is not among them.

    Raises:
        UsageError: The command line cannot be understood.
        ConfigError: The config, or what the flags say instead of one, is wrong.
    """
    command = _find_command(arguments)
    if command == "formats":
        return _parse_formats(arguments)
    if command == "show":
        return _parse_show(arguments)
    if command == "sample":
        return _parse_sample(arguments)
    return _parse_build(arguments)


def _find_command(arguments: Sequence[str]) -> str:
    for word in arguments:
        if word in COMMANDS:
            return word
    expected = f"expected a command ({', '.join(COMMANDS)})"
    for word in arguments:
        if not word.startswith("-"):
            raise UsageError(f"{expected}, got {word!r}{suggest(word, COMMANDS)}")
    raise UsageError(expected)


def _parse_formats(arguments: Sequence[str]) -> FormatsArguments:
    if formats_parser().parse_strictly(arguments).words != ["formats"]:
        raise UsageError("expected `formats`, and nothing else")
    return FormatsArguments()


def _parse_show(arguments: Sequence[str]) -> ShowArguments:
    namespace = show_parser().parse_strictly(arguments)
    command, path = namespace.words if len(namespace.words) == 2 else ("", "")
    if command != "show" or not path:
        raise UsageError("expected `show PATH`, with one path")
    _set_anonymous(namespace)
    return ShowArguments(path=path, split=namespace.split, limit=namespace.limit)


def _parse_sample(arguments: Sequence[str]) -> SampleArguments:
    namespace = sample_parser().parse_strictly(arguments)
    if namespace.words != ["sample", "shapes"]:
        raise UsageError("expected `sample shapes --output DIR --images N`")
    _require(namespace, ["output", "images"], command="sample shapes")
    return SampleArguments(
        output=Path(namespace.output),
        images=namespace.images,
        seed=namespace.seed,
        workers=namespace.workers,
        width=namespace.width,
        height=namespace.height,
    )


def _parse_build(arguments: Sequence[str]) -> BuildArguments:
    # Imported here: Beam's import takes seconds, and the other commands do without.
    from shardbeam.pipelines.runners import beam_options, beam_parser, refuse_flags

    ours = build_parser().parse_args([])
    parser = build_parser(beam=beam_parser())
    refuse_flags(parser)
    namespace = parser.parse_strictly(arguments)
    command, *targets = namespace.words or [""]
    if command not in BUILD_COMMANDS:
        raise UsageError(f"expected a command ({', '.join(COMMANDS)}) first, got {command!r}")
    if len(targets) != 1:
        got = " ".join(targets) or "none"
        raise UsageError(f"{command}: expected one config file or format ({_formats()}), got {got}")
    _set_anonymous(namespace)
    options = beam_options(namespace, parser=parser, ours=vars(ours))
    if namespace.wait is False and options.get("runner") != DATAFLOW_RUNNER:
        raise UsageError(f"--no-wait: only with --runner={DATAFLOW_RUNNER}")
    return BuildArguments(
        command=command,
        config=_make_config(namespace, command=command, target=targets[0]),
        beam_options=options,
        overwrite=namespace.overwrite,
        if_changed=namespace.if_changed,
        reuse=namespace.reuse,
        processes=namespace.processes,
        threads=namespace.threads,
        read_ahead=namespace.read_ahead,
        wait=namespace.wait,
        json=namespace.json,
        json_log=namespace.log_format == JSON,
        verbose=namespace.verbose,
    )


def _set_anonymous(namespace: argparse.Namespace) -> None:
    """Makes this process, and all that it starts, read buckets without credentials."""
    if namespace.anonymous:
        # Already the config may lie in one.
        os.environ[ANONYMOUS_VARIABLE] = "1"


def _make_config(namespace: argparse.Namespace, *, command: str, target: str) -> Config:
    if not is_uri(target) and not Path(target).is_file():
        if target in built_in_formats():
            return _config_from_flags(namespace, command=f"{command} {target}", target=target)
        if target not in ready_configs():
            raise UsageError(f"{command}: {_describe_target(target)}")
        target = str(ready_configs()[target])
    for flag, key in _config_flags().items():
        if getattr(namespace, flag) is not None:
            raise UsageError(
                f"{flag_name(flag)} goes with a format ({_formats()}), not with a config file; "
                f"use --set {key}=..."
            )
    return load_config(target, overrides=namespace.set)


def load_config(path: str | Path, *, overrides: Sequence[str] = ()) -> Config:
    """Reads a config file.

    Relative paths in it are kept as they are, so they are relative to the current folder, as
    in any command, and not to the file's.

    Args:
        path: The YAML file, or its URI.
        overrides: `path.to.key=value` each; see `make_config`.

    Raises:
        ConfigError: The file cannot be read, is no YAML, or is no config.
    """
    origin = str(path)
    try:
        data = storage_for(origin).read(origin)
    except (InputError, OSError) as error:
        problem = (
            error.problem if isinstance(error, InputError) else error.strerror or "no such file"
        )
        raise ConfigError(origin=origin, problem=f"cannot be read: {problem}") from error
    return parse_config(data, overrides=overrides, origin=origin, find_format=find_format)


def _describe_target(target: str) -> str:
    if Path(target).is_dir():
        return f"expected a config file or a format ({_formats()}), got the folder {target}"
    known = (*built_in_formats(), *ready_configs())
    hint = suggest(target, known) or f"; the formats are {_formats()}"
    return f"no such config file, format or ready config: {target}{hint}"


def _config_from_flags(namespace: argparse.Namespace, *, command: str, target: str) -> Config:
    format_class = built_in_formats()[target]
    keys = keys_of(format_class)
    source: dict[str, Any] = {"format": target}
    for flag in source_keys():
        value = getattr(namespace, flag)
        if value is None:
            continue
        if flag not in keys:
            raise UsageError(f"{command}: this format takes no {flag_name(flag)}")
        source[flag] = value
    required = [name for name, key in keys.items() if key.required]
    _require(namespace, [*required, "output"], command=command)
    if namespace.fractions and namespace.split:
        raise UsageError("--split: not together with --fractions, which names the splits")

    raw: dict[str, Any] = {
        "name": target.replace("-", "_") if namespace.name is None else namespace.name,
        "output": {"path": namespace.output},
    }
    for flag in ("version", "fractions", "group_by"):
        if getattr(namespace, flag) is not None:
            raw[flag] = getattr(namespace, flag)
    predefines_splits = format_class.predefined_splits is not Format.predefined_splits
    if namespace.fractions is not None or (predefines_splits and not namespace.split):
        raw["source"] = source
    else:
        split = _DEFAULT_SPLIT if namespace.split is None else namespace.split
        raw["splits"] = {split: source}
    try:
        return make_config(raw, overrides=namespace.set, origin="", find_format=find_format)
    except ConfigError as error:
        culprit = _flag_of(error.path)
        if error.origin == OVERRIDE_ORIGIN or culprit is None:
            raise
        raise UsageError(f"{culprit}: {error.problem}") from error


def _flag_of(path: Sequence[str | int]) -> str | None:
    """Names the flag that set a key."""
    keys = [key for key in path if isinstance(key, str)]
    if keys[:1] == ["splits"] and len(keys) == 2:
        return "--split"
    for flag in (keys[-1], keys[0]) if keys else ():
        if flag in _config_flags():
            return flag_name(flag)
    return "--output" if keys[:1] == ["output"] else None


def _require(namespace: argparse.Namespace, flags: Sequence[str], *, command: str) -> None:
    missing = [flag_name(flag) for flag in flags if getattr(namespace, flag) is None]
    if missing:
        raise UsageError(f"{command}: missing {', '.join(missing)}")


def _formats() -> str:
    return ", ".join(built_in_formats())
