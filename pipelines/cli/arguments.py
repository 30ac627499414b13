"""Parses a command line into the arguments of a command.

It imports nothing heavy, so that help answers at once.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardbeam.configs.keys import Key, flag_name, keys_of
from shardbeam.configs.load import (
    OVERRIDE_ORIGIN,
    AnyOverride,
    ConfigError,
    Override,
    make_config,
    ready_configs,
)
from shardbeam.configs.problem import did_you_mean
from shardbeam.configs.schema import Config
from shardbeam.pipelines.cli.commands import COMMANDS, Arguments, BuildArguments, SampleArguments
from shardbeam.pipelines.cli.flags import (
    config_key,
    dataset_flags,
    flags_in,
    flags_of,
    is_flag,
    make_parser,
    source_flags,
)
from shardbeam.pipelines.config_file import load_config
from shardbeam.pipelines.failures import UsageError
from shardbeam.transforms.formats.base import built_in_formats, find_format, is_format
from shardbeam.transforms.storage.archives.open import is_archive
from shardbeam.transforms.storage.base import ANONYMOUS_VARIABLE, is_uri, nearest_path
from shardbeam.transforms.storage.find import storage_for

_DEFAULT_SPLIT = "train"
# Flags that mean about the same in different formats.
_ALIKE = (
    ("images", "root", "image_root", "tars", "tfrecords"),
    ("annotations", "manifest", "boxes", "data"),
)
# Files that are no configs. A config may be JSON, because that is YAML, too.
_DATA = (".csv", ".tsv", ".jsonl", ".xml", ".zip", ".tar", ".parquet", ".tfrecord", ".jpg", ".png")


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Parses a command line; flags may come before, between and after the words.

    Args:
        words: All words after the program's name, without `--help`.

    Raises:
        UsageError: The command line cannot be understood.
        FormatError: It names an unknown format.
        ConfigError: The config is wrong, or the flags that replace it are.
    """
    command = _find_command(words)
    kind = COMMANDS[command]
    names, given = _parse_words(command, words)
    if given.get("wait") is False:
        _check_runner_waits(given["beam_options"])
    if kind is BuildArguments:
        return _make_build(names, given)
    given |= _read_words(command, names)
    if given.get("decode") and given.get("quick"):
        raise UsageError("--decode: not together with --quick, which reads no image")
    required = [key.name for key in keys_of(kind).values() if key.required and key.help]
    _require(given, required, command="sample shapes" if kind is SampleArguments else command)
    return kind(**given)


def _read_words(command: str, words: Sequence[str]) -> dict[str, str]:
    """Returns the fields of a command that its words set; the first word is its name.

    Raises:
        UsageError: There are too few or too many words.
    """
    fields = COMMANDS[command].WORDS
    keys = [keys_of(COMMANDS[command])[field] for field in fields]
    given = dict(zip(fields, words[1:], strict=False))
    is_complete = words[:1] == [command] and len(words) <= len(keys) + 1
    for key in keys:
        value = given.get(key.name)
        is_complete &= (
            not key.required if value is None else not key.choices or value in key.choices
        )
    if not is_complete:
        wanted = [fields[key.name] if key.required else f"[{fields[key.name]}]" for key in keys]
        got = f"`{' '.join(words)}`" if words else "none"
        raise UsageError(f"expected `{' '.join([command, *wanted])}`, got {got}")
    return given


def _find_command(words: Sequence[str]) -> str:
    for word in words:
        if word in COMMANDS:
            return word
    expected = f"expected a command ({', '.join(COMMANDS)})"
    for word in words:
        if not word.startswith("-"):
            raise UsageError(f"{expected}, got {word!r}{did_you_mean(word, COMMANDS, show=str)}")
    raise UsageError(expected)


def named_format(words: Sequence[str]) -> str | None:
    """Returns the format in a command line of `build` or `plan`, if there is one."""
    for command, word in itertools.pairwise(words):
        if COMMANDS.get(command) is BuildArguments and is_format(word) and not _is_file(word):
            return word
    return None


def _is_file(target: str) -> bool:
    # A pipe counts as a file here; reading it refuses it by name.
    return is_uri(target) or (Path(target).exists() and not Path(target).is_dir())


def _parse_words(command: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the words of a command line that are not flags, and the values of the flags."""
    if "beam_options" not in COMMANDS[command].__struct_fields__:
        given = make_parser(command).parse_strictly(words)
        _set_anonymous(given)
        return given.pop("words"), given
    # Imported here: Beam takes seconds to import, and the other commands do not need it.
    from shardbeam.pipelines.runners.options import REFUSED_FLAGS, beam_parser, check_beam_options

    name = named_format(words)
    own_format = None if name is None or name in built_in_formats() else find_format(name)
    beam = beam_parser()
    refused = dict(REFUSED_FLAGS)
    if own_format is not None:
        hidden = keys_of(own_format).keys() - source_flags(own_format).keys()
        why = f"is an option of Beam and a key of {name}; set the key in a config file"
        refused |= {flag: why for flag in map(flag_name, hidden) if is_flag(flag, parser=beam)}
    parser = make_parser(command, beam=beam, own_format=own_format)
    given = parser.parse_strictly(words, refused=refused)
    names = given.pop("words")
    _set_anonymous(given)
    ours = {name for flags in flags_of(COMMANDS[command], own_format).values() for name in flags}
    options = {
        name: value
        for name, value in given.items()
        if name not in ours and value != parser.get_default(name)
    }
    given = {name: given[name] for name in given if name in ours}
    return names, {**given, "beam_options": check_beam_options(options)}


def _make_build(names: Sequence[str], given: Mapping[str, Any]) -> BuildArguments:
    command, *targets = names or [""]
    if COMMANDS.get(command) is not BuildArguments:
        raise UsageError(f"expected a command ({', '.join(COMMANDS)}) first, got {command!r}")
    if not targets:
        raise UsageError(f"{command}: expected a config file or a format ({_formats()}), got none")
    if len(targets) > 1:
        raise UsageError(f"{command}: {_describe_extra_words(targets)}")
    run = {name: given[name] for name in keys_of(BuildArguments) if name in given}
    overrides = run.pop("set", [])
    config = _make_config(given, overrides=overrides, command=command, target=targets[0])
    return BuildArguments(command=command, config=config, **run)


def _check_runner_waits(beam_options: Mapping[str, Any]) -> None:
    from shardbeam.pipelines.runners.options import DATAFLOW_RUNNER

    if beam_options.get("runner") != DATAFLOW_RUNNER:
        raise UsageError(f"--no-wait: only with --runner={DATAFLOW_RUNNER}")


def _set_anonymous(given: Mapping[str, Any]) -> None:
    """Makes this process and its children read buckets without credentials."""
    if "anonymous" in given:
        # Set before the config is read, which may be in a bucket itself.
        os.environ[ANONYMOUS_VARIABLE] = "1"


def _make_config(
    given: Mapping[str, Any], *, overrides: Sequence[AnyOverride], command: str, target: str
) -> Config:
    if not _is_file(target):
        if is_format(target):
            return _config_from_flags(
                given, overrides=overrides, command=f"{command} {target}", target=target
            )
        if target not in ready_configs():
            raise UsageError(f"{command}: {_describe_target(target)}")
        target = str(ready_configs()[target])
    if target.lower().endswith(_DATA):
        # This refuses what lies on the web.
        storage_for(target)
        # An archive is a folder to `init`.
        folder = target if is_archive(target) else posixpath.dirname(target) or "."
        raise UsageError(
            f"{command}: {target} is data, and no config file; `shardbeam init "
            f"{shlex.quote(folder)}` looks at what is there and writes a config"
        )
    for flag in dataset_flags():
        if flag not in given:
            continue
        key = config_key(flag)
        if key[0] == "splits":
            raise UsageError(
                f"{flag_name(flag)} goes with a format ({_formats()}), not with a config file; "
                f"use --set {'.'.join(key)}=..."
            )
        overrides = [Override(key, given[flag]), *overrides]
    return load_config(target, overrides=overrides)


def _describe_target(target: str) -> str:
    if Path(target).is_dir():
        return (
            f"{target} is a folder; `shardbeam init {shlex.quote(target)}` looks at what is in it "
            "and writes a config"
        )
    known = (*built_in_formats(), *ready_configs())
    hint = (
        did_you_mean(target, known, show=str)
        or nearest_path(target, storage=storage_for(target))
        or f"; the formats are {_formats()}"
    )
    return f"no such config file, format or ready config: {target}{hint}"


def _describe_extra_words(targets: Sequence[str]) -> str:
    """Explains that there are more words than one config or format."""
    targets = sorted(targets, key=lambda word: not (is_format(word) or _is_file(word)))
    first, *extra = targets
    said = f"expected one config file or format, got {first} and {' '.join(extra)}"
    if all(map(os.path.exists, extra)):
        return f"{said}; quote a pattern ('*.tar'), and give a flag once for each of several paths"
    return f"{said}; quote a path with spaces in it ('my photos')"


def _check_swapped(given: Mapping[str, Any], flags: Mapping[str, Key]) -> None:
    """Refuses swapped flags: a file where a folder belongs, and the other way round.

    Raises:
        UsageError: Two flags are swapped.
    """

    def find(metavar: str, is_wrong: Callable[[str], bool]) -> list[str]:
        return [
            f"{flag_name(name)} {path}"
            for name, key in flags.items()
            if key.is_location and key.metavar == metavar and name in given
            for path in ([given[name]] if isinstance(given[name], str) else given[name])
            if is_wrong(path) and not is_archive(path)
        ]

    files, folders = find("DIR", os.path.isfile), find("FILE", os.path.isdir)
    if files and folders:
        raise UsageError(f"{files[0]} is a file, and {folders[0]} is a folder: swap them")


def _config_from_flags(
    given: Mapping[str, Any], *, overrides: Sequence[AnyOverride], command: str, target: str
) -> Config:
    format_class = find_format(target)
    flags, known = source_flags(format_class), dataset_flags(format_class)
    for flag in dataset_flags():
        if flag in given and flag not in known:
            alike = next((names for names in _ALIKE if flag in names), ())
            instead = [flag_name(name) for name in alike if name in flags]
            hint = f"; did you mean {instead[0]}?" if instead else ""
            raise UsageError(f"{command}: this format takes no {flag_name(flag)}{hint}")
    source = {"format": target, **{flag: given[flag] for flag in flags if flag in given}}
    required = [*(name for name, key in flags.items() if key.required), "output"]
    if any(name not in given for name in required):
        # Name this flag only if others are missing, too: --set may give its key.
        is_given = any(name in given for name in format_class.SOME_OF)
        required[-1:-1] = [] if is_given else format_class.SOME_OF[:1]
    _require(given, required, command=command)
    _check_swapped(given, flags)
    if "fractions" in given and "split" in given:
        raise UsageError("--split: not together with --fractions, which names the splits")

    raw: dict[str, Any] = {
        "name": target.rpartition(":")[2].replace("-", "_").lower(),
        "output": {"path": given["output"]},
        **{flag: given[flag] for flag in flags_in(Config) if flag in given},
    }
    if "fractions" in given or (not given.get("split") and format_class.predefines_splits(source)):
        raw["source"] = source
    else:
        raw["splits"] = {given.get("split", _DEFAULT_SPLIT): source}
    try:
        return make_config(raw, overrides=overrides, origin="", find_format=find_format)
    except ConfigError as error:
        culprit = _flag_of(error.path, known=known)
        if error.origin == OVERRIDE_ORIGIN or culprit is None:
            raise
        raise UsageError(f"{culprit}: {error.problem}") from error


def _flag_of(path: Sequence[str | int], *, known: Collection[str]) -> str | None:
    """Names the flag that set a key."""
    keys = [key for key in path if isinstance(key, str)]
    if keys[:1] == ["splits"] and len(keys) == 2:
        return "--split"
    for flag in (keys[-1], keys[0]) if keys else ():
        if flag in known:
            return flag_name(flag)
    return None


def _require(given: Mapping[str, Any], flags: Sequence[str], *, command: str) -> None:
    missing = [flag_name(flag) for flag in flags if flag not in given]
    if missing:
        raise UsageError(f"{command}: missing {', '.join(missing)}")


def _formats() -> str:
    return ", ".join(built_in_formats())
