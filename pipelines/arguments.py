"""The command line: each command is a class, whose fields with a help text are its flags.

Nothing heavy is imported, so that help answers at once.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import msgspec

from shardbeam.configs.convert import describe_mismatch
from shardbeam.configs.keys import Key, flag_name, key_paths, keys_of, named
from shardbeam.configs.load import (
    MAX_CONFIG_BYTES,
    OVERRIDE_ORIGIN,
    ConfigError,
    make_config,
    parse_config,
    ready_configs,
)
from shardbeam.configs.nearest import did_you_mean
from shardbeam.configs.schema import Config
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.logs import JSON
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.load import built_in_formats, find_format
from shardbeam.transforms.storage.base import ANONYMOUS_VARIABLE, is_uri
from shardbeam.transforms.storage.find import storage_for

_DEFAULT_SPLIT = "train"

_Count = Annotated[int, msgspec.Meta(ge=1, description="a whole number from 1 up")]
_Side = Annotated[int, msgspec.Meta(ge=64, le=4096, description="a whole number from 64 to 4096")]
_Anonymous = Annotated[bool, named("read public buckets (gs://) without credentials")]


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What a command is asked to do; a field with a help text (`named`) is a flag."""

    USAGE: ClassVar[str]
    HELP: ClassVar[str | None] = None
    EPILOG: ClassVar[str | None] = None


class BuildArguments(Arguments, frozen=True, kw_only=True):
    """`build` and `plan`.

    Attributes:
        command: Which of them.
        config: What to build.
        beam_options: Keyword arguments of Beam's `PipelineOptions`: all that is not as by
            default.
        damage: What `verify` has found: with `if_changed`, the dataset there is mended.
    """

    USAGE = """\
shardbeam {command} CONFIG.yaml [--set KEY=VALUE]... [flags]
       shardbeam {command} FORMAT ... --output DIR [flags], such as
       shardbeam {command} coco --images DIR --annotations FILE --output DIR
       shardbeam {command} image-folder --images DIR --output DIR"""
    EPILOG = """\
A key of the config that holds one value is a flag by its last name: --max-side 512, --seed 3.
All of Apache Beam's pipeline options are taken, too: --runner, --direct_num_workers, --project
and so on. Without --runner, the build runs on this machine and needs nothing but this package.
"""

    command: str
    config: Config
    beam_options: Mapping[str, Any]
    damage: Sequence[str] = ()
    set: Annotated[
        list[str],
        named(
            "override a key of the config, such as image.quality=90 (repeatable)",
            metavar="KEY=VALUE",
        ),
    ] = []
    overwrite: Annotated[bool, named("replace a dataset that is there already")] = False
    if_changed: Annotated[
        bool,
        named(
            "do nothing, and succeed, where inputs and config are those of the dataset there; mend "
            "it where files of it are gone or cut"
        ),
    ] = False
    reuse: Annotated[
        str | None,
        named(
            "copy the shards that would come out as they are in this dataset, and do not read "
            "their images: its folder, or a file that names it (output.latest)",
            metavar="PREVIOUS",
        ),
    ] = None
    processes: Annotated[
        _Count | None,
        named(
            "processes that write shards, per worker process and with it (default: one; where "
            "the build runs in this process and writes much, one a CPU, at most 8)",
            metavar="N",
        ),
    ] = None
    threads: Annotated[
        _Count | None,
        named(
            "threads that read images, per such process (default: two more than its CPUs)",
            metavar="N",
        ),
    ] = None
    memory: Annotated[
        _Count | None,
        named(
            "MB of memory for decoding images, per such process: one that takes more is decoded "
            "alone (default: 500, or less where memory is scarce)",
            metavar="MB",
        ),
    ] = None
    read_ahead: Annotated[
        _Count | None,
        named(
            "images read from object storage at a time, for each shard being written (default: 32)",
            metavar="N",
        ),
    ] = None
    anonymous: _Anonymous = False
    wait: Annotated[
        bool | None,
        named(
            "on Dataflow: follow the job to its end, or only submit it (default: follow it in "
            "a terminal)"
        ),
    ] = None
    json: Annotated[bool, named("print the summary as one JSON object")] = False
    log_format: Annotated[
        Literal["text", "json"],
        named(
            "write logs, progress and the summary to stderr for people, or as one JSON object a "
            "line, as Cloud Logging reads them (default: text)",
            metavar="{text,json}",
        ),
    ] = "text"
    verbose: Annotated[bool, named("log what Beam does")] = False

    @property
    def json_log(self) -> bool:
        """Whether what goes to stderr is JSON."""
        return self.log_format == JSON


class FormatsArguments(Arguments, frozen=True, kw_only=True):
    """`formats`."""

    USAGE = "shardbeam formats"
    HELP = "Lists the formats of images and annotations, and what each one takes."


class ShowArguments(Arguments, frozen=True, kw_only=True):
    """`show`.

    Attributes:
        path: A dataset's folder, a folder of TFRecord files, or a TFRecord file.
    """

    USAGE = "shardbeam show PATH [--split NAME] [--limit N]"
    HELP = """\
Prints the splits of a dataset, and the first Examples of one of them.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file.
"""

    path: str
    split: Annotated[str | None, named("which split (default: the first)")] = None
    limit: Annotated[_Count, named("how many Examples (default: 3)", metavar="N")] = 3
    anonymous: _Anonymous = False


class VerifyArguments(Arguments, frozen=True, kw_only=True):
    """`verify`.

    Attributes:
        path: A dataset's folder, a folder of TFRecord files, or a TFRecord file.
        beam_options: As of `BuildArguments`.
    """

    USAGE = "shardbeam verify PATH [--decode | --quick] [--repair CONFIG.yaml] [flags]"
    HELP = """\
Reads every byte of a dataset, compares it with what the dataset says of itself, and prints what
is wrong. The exit code is 5 where anything is.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file.
"""
    EPILOG = """\
All of Apache Beam's pipeline options are taken, too. Without --runner, it runs on this machine.
"""

    path: str
    beam_options: Mapping[str, Any]
    decode: Annotated[bool, named("decode all images, strictly")] = False
    quick: Annotated[bool, named("compare names and sizes, and read no shard")] = False
    repair: Annotated[
        str | None,
        named(
            "build the damaged shards anew, by the config file that the dataset was built by",
            metavar="CONFIG",
        ),
    ] = None
    report: Annotated[
        str | None,
        named(
            "write the result as JSON to this file; with --runner it must be named", metavar="URI"
        ),
    ] = None
    json: Annotated[bool, named("print the result as one JSON object")] = False
    anonymous: _Anonymous = False


class SampleArguments(Arguments, frozen=True, kw_only=True):
    """`sample shapes`."""

    USAGE = "shardbeam sample shapes --output DIR --images N [--seed S] [flags]"
    HELP = "Draws circles, squares, triangles and stars, with exact COCO annotations."

    output: Annotated[str, named("folder to write to", metavar="DIR")]
    images: Annotated[_Count, named("how many images", metavar="N")]
    seed: Annotated[
        int,
        msgspec.Meta(ge=0, description="a whole number from 0 up"),
        named("decides what is drawn (default: 0)", metavar="S"),
    ] = 0
    workers: Annotated[_Count | None, named("processes (default: the CPUs)", metavar="W")] = None
    width: Annotated[_Side, named("width of an image in pixels (default: 640)", metavar="PX")] = 640
    height: Annotated[_Side, named("height of an image in pixels (default: 480)", metavar="PX")] = (
        480
    )


class TopArguments(Arguments, frozen=True, kw_only=True):
    """The program without a command."""

    USAGE = "shardbeam [--help] [--version] COMMAND ..."
    HELP = """\
Turns image files and their annotations into sharded TFRecord files of tf.train.Example.

commands:
  build     build a dataset, from a config file or from flags
  plan      list and join as build would, write nothing, and print what would be built
  formats   list the formats of images and annotations, and the flags of each
  show      print the first Examples of a dataset, or of any TFRecord file
  verify    read every byte of a dataset, and print what is wrong with it
  sample    draw a small dataset to try things with

shardbeam COMMAND --help tells about a command, shardbeam build FORMAT --help about a format.

exit codes: 0 done, 1 failed, 2 wrong usage or config, 3 too many rejects, 4 another run writes
to the output, 5 verify has found damage, 130 interrupted
"""


COMMANDS: dict[str, type[Arguments]] = {
    "build": BuildArguments,
    "plan": BuildArguments,
    "formats": FormatsArguments,
    "show": ShowArguments,
    "verify": VerifyArguments,
    "sample": SampleArguments,
}


# {command: (what its words must be, the same in words)}
_WORDS = {
    "formats": (["formats"], "`formats`, and nothing else"),
    "show": (["show", "(?s).+"], "`show PATH`, with one path"),
    "verify": (["verify", "(?s).+"], "`verify PATH`, with one path"),
    "sample": (["sample", "shapes"], "`sample shapes --output DIR --images N`"),
}


class _OutputFlags(msgspec.Struct):
    """The flags of a dataset without a config file that are neither its keys nor a source's."""

    output: Annotated[str | None, named("folder of the dataset", metavar="DIR")] = None
    split: Annotated[str | None, named("name of the split (default: train)")] = None


class FlagParser(argparse.ArgumentParser):
    """A parser that refuses what it does not know, in one line, and takes flags anywhere.

    The words that are no flags end in `words`. Flags of ours that are not given are left out.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # Those of the base class.
        super().__init__(
            add_help=False,
            allow_abbrev=False,
            conflict_handler="resolve",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )
        # {flag that is none: what to write instead}
        self._instead: dict[str, str] = {}
        self.add_argument("words", nargs="*", help=argparse.SUPPRESS)
        # Only for the help text: the program looks for it before it parses anything.
        self.add_argument(
            "-h",
            "--help",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print this and leave",
        )

    def error(self, message: str) -> NoReturn:
        """Raises what the base class would print and exit with.

        Raises:
            UsageError: Always.
        """
        raise UsageError(message.removeprefix("argument "))

    def add_flag(self, group: argparse._ArgumentGroup, key: Key) -> None:
        """Adds the flag that sets a key."""
        options: dict[str, Any] = {"help": key.help, "default": argparse.SUPPRESS}
        if not key.switch:
            options["metavar"] = key.metavar
            options["type"] = functools.partial(_read_value, _value_type(key.type))
            options["action"] = "append" if key.repeatable else "store"
        elif key.nullable:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["action"] = "store_true"
        group.add_argument(flag_name(key.name), **options)

    def add_overrides(self) -> None:
        """Adds a flag for each key of the config that no other flag has the last name of.

        They are kept out of the help, and stand for `--set`.
        """
        taken = frozenset(self._option_string_actions)
        paths: dict[str, list[tuple[str, Key]]] = {}
        for parts, key in key_paths(Config):
            paths.setdefault(key.name, []).append((".".join(parts), key))
        for name, found in paths.items():
            spellings = dict.fromkeys((flag_name(name), f"--{name}"))
            if taken.isdisjoint(spellings):
                path, key = found[0]
                if len(found) == 1 and key.is_scalar and path != _config_key("output"):
                    for spelling in spellings:
                        self.add_argument(
                            spelling,
                            dest="set",
                            action="append",
                            type=functools.partial(_read_override, path, _value_type(key.type)),
                            default=argparse.SUPPRESS,
                            help=argparse.SUPPRESS,
                        )
                else:
                    instead = " or ".join(f"--set {path}=VALUE" for path, _ in found)
                    self._instead |= dict.fromkeys(spellings, f"; use {instead}")

    def parse_strictly(
        self, words: Sequence[str], *, refused: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Parses a whole command line.

        Args:
            words: The command line.
            refused: `{flag: why it is refused}`.

        Raises:
            UsageError: A flag is unknown or refused, or its value is wrong.
        """
        for word in words:
            flag = word.partition("=")[0]
            if flag in refused:
                raise UsageError(f"{flag} is refused: it {refused[flag]}")
        try:
            namespace, rest = self.parse_known_intermixed_args(words)
        except (TypeError, ValueError) as error:
            # Some of Beam's actions convert their values unprotected.
            raise UsageError(f"a flag's value cannot be read: {error}") from error
        for word in rest:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                known = self._option_string_actions.keys() - refused.keys()
                hint = self._instead.get(flag) or did_you_mean(flag, known, show=str)
                raise UsageError(f"unknown flag {flag}{hint}")
        return vars(namespace)


def describe_format(name: str, *, command: str = "build") -> str:
    """Makes the help of a format: what it reads, a command as an example, and its flags."""
    format_class = built_in_formats()[name]
    keys = _flags(format_class).values()
    needed = [
        f"{flag_name(key.name)} {key.metavar}"
        for key in keys
        if key.required or key.name in format_class.SOME_OF[:1]
    ]
    usage = " ".join([f"shardbeam {command} {name}", *needed, "--output DIR [flags]"])
    parser = FlagParser(
        usage=usage,
        description=format_class.SUMMARY,
        epilog=f"`shardbeam {command} --help` lists the flags of all runs.",
    )
    group = parser.add_argument_group("the dataset")
    for key in (*keys, *_flags(_OutputFlags).values(), *_flags(Config).values()):
        parser.add_flag(group, key)
    return parser.format_help()


def make_parser(command: str = "", *, beam: argparse.ArgumentParser | None = None) -> FlagParser:
    """Makes the parser of a command; without one, that whose help is the program's.

    Args:
        command: Which command.
        beam: A parser with Beam's options, which are taken as well; ours win.
    """
    kind = COMMANDS.get(command, TopArguments)
    parser = FlagParser(
        prog=f"shardbeam {command}".strip(),
        usage=kind.USAGE.format(command=command),
        description=kind.HELP,
        epilog=kind.EPILOG,
        parents=[] if beam is None else [beam],
    )
    if kind is TopArguments:
        parser.add_argument("--version", action="store_true", help="print the version and leave")
    for title, flags in flags_of(kind).items():
        group = parser.add_argument_group(title)
        for flag in flags.values():
            parser.add_flag(group, flag)
    if kind is BuildArguments:
        parser.add_overrides()
    return parser


def flags_of(kind: type[Arguments]) -> dict[str, dict[str, Key]]:
    """The flags of a command, by the headings of its help."""
    flags = _flags(kind)
    if kind is BuildArguments:
        return {"the dataset, without a config file": _dataset_flags(), "the run": flags}
    return {"flags": flags} if flags else {}


def _flags(kind: type[msgspec.Struct]) -> dict[str, Key]:
    return {name: key for name, key in keys_of(kind).items() if key.help}


def _source_flags() -> dict[str, Key]:
    """The flags of all formats, which say in which formats they are."""
    flags: dict[str, Key] = {}
    formats: dict[str, list[str]] = {}
    for format_name, format_class in built_in_formats().items():
        for name, key in _flags(format_class).items():
            flags.setdefault(name, key)
            formats.setdefault(name, []).append(format_name)
    for name, key in flags.items():
        repeat = "; repeatable" if key.repeatable else ""
        values = f": {', '.join(key.choices)}" if key.choices else ""
        text = f"{key.help}{values} ({', '.join(formats[name])}{repeat})"
        flags[name] = msgspec.structs.replace(key, help=text)
    return flags


def _dataset_flags() -> dict[str, Key]:
    return {**_source_flags(), **_flags(_OutputFlags), **_flags(Config)}


def _config_key(flag: str) -> str:
    """The key of a config that a flag of a dataset stands for."""
    if flag in _flags(_OutputFlags):
        return {"output": "output.path", "split": "splits"}[flag]
    return flag if flag in _flags(Config) else f"splits.NAME.{flag}"


def _value_type(kind: Any) -> Any:  # noqa: ANN401  # Any type.
    """The type of one value of a flag: not None, and an item of a list."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        return _value_type(next(each for each in arguments if each is not types.NoneType))
    if origin is Annotated and typing.get_origin(arguments[0]) is not None:
        return _value_type(arguments[0])
    return arguments[0] if origin is list else kind


def _read_value(kind: Any, text: str) -> object:  # noqa: ANN401  # Any type.
    if typing.get_origin(kind) is dict:
        return _parse_fractions(text)
    try:
        value: object = msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        raise argparse.ArgumentTypeError(describe_mismatch(text, kind)) from None
    return value


def _read_override(path: str, kind: Any, text: str) -> str:  # noqa: ANN401  # Any type.
    return f"{path}={json.dumps(_read_value(kind, text), ensure_ascii=False)}"


def _parse_fractions(text: str) -> dict[str, float]:
    fractions: dict[str, float] = {}
    for part in text.split(","):
        name, _, fraction = part.partition("=")
        try:
            if name in fractions:
                raise ValueError
            fractions[name] = float(fraction)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"expected split=fraction,... with each split once, got {text!r}"
            ) from None
    return fractions


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Parses a command line; flags may stand before, between and after the words.

    Args:
        words: All words after the program's name; `--help` is not among them.

    Raises:
        UsageError: The command line cannot be understood.
        ConfigError: The config, or what the flags say instead of one, is wrong.
    """
    command = _find_command(words)
    kind = COMMANDS[command]
    names, given = _parse_words(command, words)
    if kind is BuildArguments:
        return _make_build(names, given)
    wanted, described = _WORDS[command]
    if len(names) != len(wanted) or not all(map(re.fullmatch, wanted, names)):
        raise UsageError(f"expected {described}")
    if "path" in kind.__struct_fields__:
        given["path"] = names[1]
    if given.get("decode") and given.get("quick"):
        raise UsageError("--quick reads no image that --decode could decode; leave one out")
    if kind is SampleArguments:
        _require(given, ["output", "images"], command="sample shapes")
    return kind(**given)


def _find_command(words: Sequence[str]) -> str:
    for word in words:
        if word in COMMANDS:
            return word
    expected = f"expected a command ({', '.join(COMMANDS)})"
    for word in words:
        if not word.startswith("-"):
            raise UsageError(f"{expected}, got {word!r}{did_you_mean(word, COMMANDS, show=str)}")
    raise UsageError(expected)


def _parse_words(command: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Parses a command line: the words that are no flags, and what the others give."""
    if "beam_options" not in COMMANDS[command].__struct_fields__:
        given = make_parser(command).parse_strictly(words)
        _set_anonymous(given)
        return given.pop("words"), given
    # Imported here: Beam's import takes seconds, and the other commands do without.
    from shardbeam.pipelines.runners import REFUSED_FLAGS, beam_parser, check_beam_options

    parser = make_parser(command, beam=beam_parser())
    given = parser.parse_strictly(words, refused=REFUSED_FLAGS)
    names = given.pop("words")
    _set_anonymous(given)
    ours = {name for flags in flags_of(COMMANDS[command]).values() for name in flags}
    options = {
        name: value
        for name, value in given.items()
        if name not in ours and value != parser.get_default(name)
    }
    given = {name: given[name] for name in given if name in ours}
    return names, {**given, "beam_options": check_beam_options(options)}


def _make_build(names: Sequence[str], given: Mapping[str, Any]) -> BuildArguments:
    from shardbeam.pipelines.runners import DATAFLOW_RUNNER

    command, *targets = names or [""]
    if COMMANDS.get(command) is not BuildArguments:
        raise UsageError(f"expected a command ({', '.join(COMMANDS)}) first, got {command!r}")
    if len(targets) != 1:
        got = " ".join(targets) or "none"
        raise UsageError(f"{command}: expected one config file or format ({_formats()}), got {got}")
    run = {name: given[name] for name in keys_of(BuildArguments) if name in given}
    if run.get("wait") is False and given["beam_options"].get("runner") != DATAFLOW_RUNNER:
        raise UsageError(f"--no-wait: only with --runner={DATAFLOW_RUNNER}")
    overrides = run.get("set", [])
    config = _make_config(given, overrides=overrides, command=command, target=targets[0])
    return BuildArguments(command=command, config=config, **run)


def _set_anonymous(given: Mapping[str, Any]) -> None:
    """Makes this process, and all that it starts, read buckets without credentials."""
    if "anonymous" in given:
        # Already the config may lie in one.
        os.environ[ANONYMOUS_VARIABLE] = "1"


def _make_config(
    given: Mapping[str, Any], *, overrides: Sequence[str], command: str, target: str
) -> Config:
    if not is_uri(target) and not Path(target).is_file():
        if target in built_in_formats():
            return _config_from_flags(
                given, overrides=overrides, command=f"{command} {target}", target=target
            )
        if target not in ready_configs():
            raise UsageError(f"{command}: {_describe_target(target)}")
        target = str(ready_configs()[target])
    for flag in _dataset_flags():
        if flag not in given:
            continue
        key = _config_key(flag)
        if key.startswith("splits"):
            raise UsageError(
                f"{flag_name(flag)} goes with a format ({_formats()}), not with a config file; "
                f"use --set {key}=..."
            )
        overrides = [f"{key}={json.dumps(given[flag], ensure_ascii=False)}", *overrides]
    return load_config(target, overrides=overrides)


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
        # What is larger is refused unread.
        data = storage_for(origin).read(origin, size_bytes=MAX_CONFIG_BYTES + 1)
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
    hint = did_you_mean(target, known, show=str) or f"; the formats are {_formats()}"
    return f"no such config file, format or ready config: {target}{hint}"


def _config_from_flags(
    given: Mapping[str, Any], *, overrides: Sequence[str], command: str, target: str
) -> Config:
    format_class = built_in_formats()[target]
    keys = keys_of(format_class)
    source: dict[str, Any] = {"format": target}
    for flag in _source_flags():
        if flag not in given:
            continue
        if flag not in keys:
            raise UsageError(f"{command}: this format takes no {flag_name(flag)}")
        source[flag] = given[flag]
    required = [name for name, key in keys.items() if key.required]
    _require(given, [*required, "output"], command=command)
    if "fractions" in given and "split" in given:
        raise UsageError("--split: not together with --fractions, which names the splits")

    raw: dict[str, Any] = {
        "name": target.replace("-", "_"),
        "output": {"path": given["output"]},
        **{flag: given[flag] for flag in _flags(Config) if flag in given},
    }
    if "fractions" in given or (not given.get("split") and format_class.predefines_splits(source)):
        raw["source"] = source
    else:
        raw["splits"] = {given.get("split", _DEFAULT_SPLIT): source}
    try:
        return make_config(raw, overrides=overrides, origin="", find_format=find_format)
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
        if flag in _dataset_flags():
            return flag_name(flag)
    return None


def _require(given: Mapping[str, Any], flags: Sequence[str], *, command: str) -> None:
    missing = [flag_name(flag) for flag in flags if flag not in given]
    if missing:
        raise UsageError(f"{command}: missing {', '.join(missing)}")


def _formats() -> str:
    return ", ".join(built_in_formats())
