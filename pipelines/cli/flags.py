"""The flags of a command: the fields of its class, of the formats and of the config."""

from __future__ import annotations

import argparse
import functools
import itertools
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NoReturn

import msgspec

from shardbeam.configs.convert import describe_mismatch
from shardbeam.configs.decoding import convert_value
from shardbeam.configs.keys import Key, flag_name, is_scalar, key_paths, keys_of, named
from shardbeam.configs.load import Override
from shardbeam.configs.problem import did_you_mean
from shardbeam.configs.schema import Config
from shardbeam.pipelines.cli.commands import COMMANDS, Arguments, BuildArguments, TopArguments
from shardbeam.pipelines.failures import UsageError
from shardbeam.transforms.formats.base import Format, built_in_formats, find_format


class OutputFlags(msgspec.Struct):
    """Flags in place of a config file, under other names than the config's keys."""

    output: Annotated[str | None, named("folder of the dataset", metavar="DIR")] = None
    split: Annotated[str | None, named("name of the split (default: train)")] = None


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that keeps words such as `open-images` on one line."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wraps the paragraphs and the rows of tables that are too wide for a narrow terminal."""
        lines: list[str] = []
        given = super()._fill_text(text, width, indent).splitlines()
        # A line that is empty, or begins with a space, ends a paragraph.
        for is_prose, block in itertools.groupby(given, lambda line: line[:1].strip() != ""):
            group = list(block)
            if max(map(len, group)) <= width:
                lines += group
            elif is_prose:
                lines += self._split_lines(" ".join(group), width)
            else:
                for row in group:
                    words = row.split(maxsplit=1)
                    lines += _wrap(row, width, indent=row.index(words[-1])) if words else [""]
        return "".join(f"{line}\n" for line in lines)


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


class FlagParser(argparse.ArgumentParser):
    """A parser that takes flags anywhere and refuses unknown ones in one line.

    Words that are not flags go to `words`. Flags of Shardbeam's that are not given are left out.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # The base class's.
        super().__init__(
            add_help=False,
            allow_abbrev=False,
            conflict_handler="resolve",
            formatter_class=_HelpFormatter,
            **options,
        )
        # {a key that is not a flag: what to write instead}
        self._instead: dict[str, str] = {}
        # Flags that Shardbeam defines, and not Beam.
        self._ours: set[str] = set()
        self.add_argument("words", nargs="*", help=argparse.SUPPRESS)
        # Only for the help text: `cli` looks for --help before it parses.
        self.add_argument(
            "-h",
            "--help",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print this help and exit",
        )

    def error(self, message: str) -> NoReturn:
        """Raises the message that the base class would print before it exits.

        Raises:
            UsageError: Always.
        """
        raise UsageError(message.removeprefix("argument "))

    def add_flag(self, group: argparse._ArgumentGroup, key: Key) -> None:
        """Adds the flag that sets a key."""
        options: dict[str, Any] = {"help": key.help, "default": argparse.SUPPRESS}
        if not key.switch or key.choices:
            options["metavar"] = key.metavar
            options["type"] = functools.partial(_read_value, _value_type(key.type))
            options["action"] = "append" if key.repeatable else "store"
            if key.switch:
                # The flag alone, or with one of its values.
                options |= {"nargs": "?", "const": True, "metavar": key.metavar}
        elif key.nullable:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["action"] = "store_true"
        action = group.add_argument(flag_name(key.name), **options)
        self._ours.update(action.option_strings)

    def add_overrides(self) -> None:
        """Adds a flag for each key of the config whose last name is free.

        These flags are short for `--set`, and not in the help.
        """
        taken = frozenset(self._option_string_actions)
        paths: dict[str, list[tuple[tuple[str, ...], Key]]] = {}
        for path, key in key_paths(Config):
            paths.setdefault(key.name, []).append((path, key))
        for name, found in paths.items():
            flag = flag_name(name)
            is_section = any(hasattr(key.type, "__struct_fields__") for _, key in found)
            # A section takes no value, so another flag with a similar name was intended.
            if flag not in taken and not is_section:
                path, key = found[0]
                if len(found) == 1 and is_scalar(key.type) and path != config_key("output"):
                    self._ours.add(flag)
                    self.add_argument(
                        flag,
                        dest="set",
                        action="append",
                        type=functools.partial(_read_override, path, _value_type(key.type)),
                        default=argparse.SUPPRESS,
                        help=argparse.SUPPRESS,
                    )
                else:
                    instead = " or ".join(f"--set {'.'.join(path)}=VALUE" for path, _ in found)
                    self._instead[flag] = f"; use {instead}"

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
        words = self._spell(words)
        try:
            namespace, rest = self.parse_known_intermixed_args(words)
        except (TypeError, ValueError) as error:
            # Some of Beam's actions let conversion errors through.
            raise UsageError(f"a flag's value cannot be read: {error}") from error
        for word in rest:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                raise UsageError(f"unknown flag {flag}{self._explain(flag, refused=refused)}")
        return vars(namespace)

    def _spell(self, words: Sequence[str]) -> list[str]:
        """Writes flags of ours as they are named, where they have `_` for `-`.

        Raises:
            UsageError: A flag is given in both spellings.
        """
        spelled: list[str] = []
        spellings: dict[str, str] = {}
        for word in words:
            flag, equals, value = word.partition("=")
            dashed = flag.replace("_", "-")
            is_ours = dashed in self._ours and (
                flag == dashed or flag not in self._option_string_actions
            )
            if is_ours and spellings.setdefault(dashed, flag) != flag:
                raise UsageError(f"{dashed}: given twice, as {spellings[dashed]} and as {flag}")
            # Other flags are Beam's, which have `_`, or unknown.
            spelled.append(f"{dashed}{equals}{value}" if is_ours else word)
        return spelled

    def _explain(self, flag: str, *, refused: Mapping[str, str]) -> str:
        """Names the flag that an unknown one was probably meant to be; empty if none is near."""
        # Imported here, because only errors need it.
        from shardbeam.configs.hints.other_tools import explain_flag

        known = self._option_string_actions.keys() - refused.keys()
        return (
            explain_flag(flag, is_known=known.__contains__)
            or self._instead.get(flag.replace("_", "-"))
            or did_you_mean(flag, known & self._ours, show=str)
            or did_you_mean(flag, known, show=str)
        )


def describe_format(name: str, *, command: str = "build") -> str:
    """Makes the help of a format: what it reads, an example, and its flags.

    Raises:
        FormatError: There is no such format.
    """
    format_class = find_format(name)
    keys = source_flags(format_class).values()
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
    for key in dataset_flags(format_class).values():
        parser.add_flag(group, key)
    return parser.format_help()


def make_parser(
    command: str = "",
    *,
    beam: argparse.ArgumentParser | None = None,
    own_format: type[Format] | None = None,
) -> FlagParser:
    """Makes the parser of a command, or of the program for its help.

    Args:
        command: The command; empty for the program.
        beam: A parser with Beam's options to take as well; ours win.
        own_format: A custom format, whose flags replace those of all formats.
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
        parser.add_argument("--version", action="store_true", help="print the version and exit")
    for title, flags in flags_of(kind, own_format).items():
        group = parser.add_argument_group(title)
        for flag in flags.values():
            parser.add_flag(group, flag)
    if kind is BuildArguments:
        parser.add_overrides()
    return parser


def flags_of(
    kind: type[Arguments], own_format: type[Format] | None = None
) -> dict[str, dict[str, Key]]:
    """Returns the flags of a command, by the headings of its help."""
    flags = flags_in(kind)
    if kind is BuildArguments:
        dataset = dataset_flags(own_format)
        return {"the dataset, without a config file": dataset, "the run": flags}
    return {"flags": flags} if flags else {}


def flags_in(kind: type[msgspec.Struct]) -> dict[str, Key]:
    """Returns the keys of a class that are flags: those with a help text."""
    return {name: key for name, key in keys_of(kind).items() if key.help}


def dataset_flags(format_class: type[Format] | None = None) -> dict[str, Key]:
    """Returns the flags that stand for a config file: of one format, or of all."""
    if format_class is None:
        source = _all_source_flags()
    else:
        source = {
            name: msgspec.structs.replace(
                key, help=_describe(key, note="repeatable" if key.repeatable else "")
            )
            for name, key in source_flags(format_class).items()
        }
    return {**source, **flags_in(OutputFlags), **flags_in(Config)}


def source_flags(format_class: type[Format]) -> dict[str, Key]:
    """Returns the flags of a format: its keys with a help text.

    For a custom format, every key of texts or numbers becomes a flag, unless its name is taken.
    """
    if format_class in built_in_formats().values():
        return flags_in(format_class)
    taken = {"format", "words", "help"}.union(*map(keys_of, (BuildArguments, OutputFlags, Config)))
    return {
        name: key
        for name, key in keys_of(format_class).items()
        if name not in taken and is_scalar(_value_type(key.type))
    }


def is_flag(flag: str, *, parser: argparse.ArgumentParser) -> bool:
    """Whether a parser knows a flag."""
    return flag in parser._option_string_actions


def _all_source_flags() -> dict[str, Key]:
    """Returns the flags of all formats; the help of each says what it means in which formats."""
    flags: dict[str, Key] = {}
    # {flag: {help text: the formats in which the flag has this help text}}
    meanings: dict[str, dict[str, list[str]]] = {}
    for format_name, format_class in built_in_formats().items():
        for name, key in flags_in(format_class).items():
            flags.setdefault(name, key)
            meanings.setdefault(name, {}).setdefault(_describe(key), []).append(format_name)
    for name, key in flags.items():
        repeat = "; repeatable" if key.repeatable else ""
        text = "; ".join(
            f"{meaning} ({', '.join(formats)}{repeat})"
            for meaning, formats in meanings[name].items()
        )
        flags[name] = msgspec.structs.replace(key, help=text)
    return flags


def _describe(key: Key, *, note: str = "") -> str:
    """Returns the help text of a key, with its values, and with a note in brackets."""
    values = f": {', '.join(key.choices)}" if key.choices else ""
    end = f" ({note})" if note else ""
    return f"{key.help}{values}{end}".lstrip(": ")


def config_key(flag: str) -> tuple[str, ...]:
    """Returns the path of the config key that a flag of a dataset sets."""
    if flag in flags_in(OutputFlags):
        return {"output": ("output", "path"), "split": ("splits",)}[flag]
    return (flag,) if flag in flags_in(Config) else ("splits", "NAME", flag)


def _value_type(kind: Any) -> Any:  # noqa: ANN401  # Any type.
    """Returns the type of one value of a flag: without None; for a list, that of its items."""
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
        value: object = convert_value(text, kind, strict=False)
    except msgspec.ValidationError:
        raise argparse.ArgumentTypeError(describe_mismatch(text, kind)) from None
    return value


def _read_override(path: tuple[str, ...], kind: Any, text: str) -> Override:  # noqa: ANN401  # Any type.
    return Override(path, _read_value(kind, text))


def _parse_fractions(text: str) -> dict[str, float]:
    fractions: dict[str, float] = {}
    for part in text.split(","):
        name, _, fraction = part.partition("=")
        try:
            if name in fractions:
                raise ValueError
            fractions[name] = float(fraction)
        except ValueError:
            # Percents are the other usual way to write shares.
            hint = "; write 0.8 for 80 %" if "%" in fraction else ""
            raise argparse.ArgumentTypeError(
                f"expected split=fraction,... with each split once, got {text!r}{hint}"
            ) from None
    return fractions
