"""The flags of each command. Nothing heavy is imported, so that help answers at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from shardbeam.configs.keys import Key, keys_of
from shardbeam.configs.nearest import suggest
from shardbeam.pipelines.json_log import JSON, LOG_FORMAT, TEXT
from shardbeam.transforms.formats.load import built_in_formats

BUILD_COMMANDS = ("build", "plan")
COMMANDS = (*BUILD_COMMANDS, "formats", "show", "sample")
DATAFLOW_RUNNER = "DataflowRunner"

_TOP_USAGE = "shardbeam [--help] [--version] COMMAND ..."
_TOP_HELP = """\
Turns image files and their annotations into sharded TFRecord files of tf.train.Example.

commands:
  build     build a dataset, from a config file or from flags
  plan      list and join as build would, write nothing, and print what would be built
  formats   list the formats of images and annotations, and the flags of each
  show      print the first Examples of a dataset, or of any TFRecord file
  sample    draw a small dataset to try things with

shardbeam COMMAND --help tells about a command.

exit codes: 0 done, 1 failed, 2 wrong usage or config, 3 too many rejects, 4 another run writes
to the output, 130 interrupted
"""
_BUILD_USAGE = """\
shardbeam {command} CONFIG.yaml [--set KEY=VALUE]... [flags]
       shardbeam {command} FORMAT ... --output DIR [flags], such as
       shardbeam {command} coco --images DIR --annotations FILE --output DIR
       shardbeam {command} image-folder --images DIR --output DIR"""
_BUILD_EPILOG = """\
All of Apache Beam's pipeline options are taken, too: --runner, --direct_num_workers, --project
and so on. Without --runner, the build runs on this machine and needs nothing but this package.
"""
_FORMATS_HELP = "Lists the formats of images and annotations, and what each one takes."
_SHOW_USAGE = "shardbeam show PATH [--split NAME] [--limit N]"
_SHOW_HELP = """\
Prints the splits of a dataset, and the first Examples of one of them.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file.
"""
_SAMPLE_USAGE = "shardbeam sample shapes --output DIR --images N [--seed S] [flags]"
_SAMPLE_HELP = "Draws circles, squares, triangles and stars, with exact COCO annotations."


class UsageError(Exception):
    """A command line that cannot be understood; the message is one line."""


class FlagParser(argparse.ArgumentParser):
    """A parser that refuses what it does not know, in one line, and takes flags anywhere.

    The words that are no flags end in `words`.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # Those of the base class.
        super().__init__(
            add_help=False,
            allow_abbrev=False,
            conflict_handler="resolve",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )
        self.add_argument("words", nargs="*", help=argparse.SUPPRESS)
        # Only for the help text: the program looks for it before it parses anything.
        self.add_argument("-h", "--help", action="store_true", help="print this and leave")

    def error(self, message: str) -> NoReturn:
        """Raises what the base class would print and exit with.

        Raises:
            UsageError: Always.
        """
        raise UsageError(message.removeprefix("argument "))

    def parse_strictly(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses a whole command line.

        Raises:
            UsageError: A flag is unknown, or its value is wrong.
        """
        try:
            namespace, rest = self.parse_known_intermixed_args(arguments)
        except (TypeError, ValueError) as error:
            # Some of Beam's actions convert their values unprotected.
            raise UsageError(f"a flag's value cannot be read: {error}") from error
        for word in rest:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                raise UsageError(f"unknown flag {flag}{suggest(flag, self.known_flags())}")
        return namespace

    def refuse(self, flag: str, *, reason: str) -> None:
        """Makes a flag, known so far or not, an error."""
        self.add_argument(flag, action=_Refuse, reason=reason)

    def known_flags(self) -> Iterator[str]:
        """Lists all flags but the refused ones."""
        for action in self._actions:
            if not isinstance(action, _Refuse):
                yield from action.option_strings


class _Refuse(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, *, reason: str) -> None:
        del dest
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs="?")
        self.reason = reason

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        raise argparse.ArgumentError(None, f"{option_string} is refused: it {self.reason}")


def top_parser() -> FlagParser:
    """The parser whose help is the program's; it parses nothing."""
    parser = FlagParser(prog="shardbeam", usage=_TOP_USAGE, description=_TOP_HELP)
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    return parser


def build_parser(
    *, command: str = "build", beam: argparse.ArgumentParser | None = None
) -> FlagParser:
    """The parser of `build` and `plan`.

    Args:
        command: Which of them the help is about.
        beam: A parser with Beam's options, which are taken as well; ours win.
    """
    parser = FlagParser(
        prog=f"shardbeam {command}",
        usage=_BUILD_USAGE.format(command=command),
        epilog=_BUILD_EPILOG,
        parents=[] if beam is None else [beam],
    )
    config = parser.add_argument_group("the dataset, without a config file")
    for keys in source_keys().values():
        _add_source_flag(config, keys)
    config.add_argument("--output", metavar="DIR", help="folder of the dataset")
    config.add_argument("--split", metavar="NAME", help="name of the split (default: train)")
    config.add_argument(
        "--fractions",
        metavar="NAME=FRACTION,...",
        type=_parse_fractions,
        help="make several splits, such as train=0.8,validation=0.2",
    )
    config.add_argument(
        "--group-by",
        metavar="REGEX",
        help="images whose path gives the same first group stay in one split",
    )
    config.add_argument("--name", help="the dataset's name (default: the format's)")
    config.add_argument("--version", metavar="X.Y.Z", help="the dataset's version (default: 1.0.0)")

    run = parser.add_argument_group("the run")
    run.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key of the config, such as image.quality=90 (repeatable)",
    )
    run.add_argument(
        "--overwrite", action="store_true", help="replace a dataset that is there already"
    )
    run.add_argument(
        "--if-changed",
        action="store_true",
        help="do nothing, and succeed, where inputs and config are those of the dataset there",
    )
    run.add_argument(
        "--reuse",
        metavar="PREVIOUS",
        help="copy the shards that would come out as they are in this dataset, and do not read "
        "their images: its folder, or a file that names it (output.latest)",
    )
    run.add_argument(
        "--processes",
        metavar="N",
        type=_parse_count,
        help="processes that write shards, per worker process and with it (default: one; where "
        "the build runs in this process and writes much, one a CPU, at most 8)",
    )
    run.add_argument(
        "--threads",
        metavar="N",
        type=_parse_count,
        help="threads that read images, per such process (default: two more than its CPUs)",
    )
    run.add_argument(
        "--read-ahead",
        metavar="N",
        type=_parse_count,
        help="images read from object storage at a time, for each shard being written "
        "(default: 32)",
    )
    _add_anonymous_flag(run)
    run.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        help="on Dataflow: follow the job to its end, or only submit it (default: follow it in a "
        "terminal)",
    )
    run.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    run.add_argument(
        LOG_FORMAT,
        choices=(TEXT, JSON),
        default=TEXT,
        help="write logs, progress and the summary to stderr for people, or as one JSON object a "
        "line, as Cloud Logging reads them (default: text)",
    )
    run.add_argument("--verbose", action="store_true", help="log what Beam does")
    return parser


def show_parser() -> FlagParser:
    """The parser of `show`."""
    parser = FlagParser(prog="shardbeam show", usage=_SHOW_USAGE, description=_SHOW_HELP)
    flags = parser.add_argument_group("flags")
    flags.add_argument("--split", metavar="NAME", help="which split (default: the first)")
    flags.add_argument(
        "--limit", metavar="N", type=_parse_count, default=3, help="how many Examples (default: 3)"
    )
    _add_anonymous_flag(flags)
    return parser


def sample_parser() -> FlagParser:
    """The parser of `sample`."""
    parser = FlagParser(prog="shardbeam sample", usage=_SAMPLE_USAGE, description=_SAMPLE_HELP)
    flags = parser.add_argument_group("flags")
    flags.add_argument("--output", metavar="DIR", help="folder to write to")
    flags.add_argument("--images", metavar="N", type=_parse_count, help="how many images")
    flags.add_argument(
        "--seed", metavar="S", type=int, default=0, help="decides what is drawn (default: 0)"
    )
    flags.add_argument(
        "--workers", metavar="W", type=_parse_count, help="processes (default: the CPUs)"
    )
    for side, default in (("width", 640), ("height", 480)):
        flags.add_argument(
            f"--{side}",
            metavar="PX",
            type=_parse_count,
            default=default,
            help=f"{side} of an image in pixels (default: {default})",
        )
    return parser


def formats_parser() -> FlagParser:
    """The parser of `formats`."""
    return FlagParser(
        prog="shardbeam formats", usage="shardbeam formats", description=_FORMATS_HELP
    )


def source_keys() -> dict[str, dict[str, Key]]:
    """The keys of sources that have a flag: `{key: {format: what it is there}}`."""
    keys: dict[str, dict[str, Key]] = {}
    for format_name, format_class in built_in_formats().items():
        for name, key in keys_of(format_class).items():
            if key.has_flag:
                keys.setdefault(name, {})[format_name] = key
    return keys


def flag_name(key: str) -> str:
    """The flag that sets a key."""
    return f"--{key.replace('_', '-')}"


def _add_source_flag(group: argparse._ArgumentGroup, keys: Mapping[str, Key]) -> None:
    key = next(iter(keys.values()))
    repeat = "; repeatable" if key.repeatable else ""
    choices = f": {', '.join(key.choices)}" if key.choices else ""
    help_text = f"{key.help}{choices} ({', '.join(keys)}{repeat})"
    if key.switch:
        group.add_argument(flag_name(key.name), action="store_true", default=None, help=help_text)
    else:
        action = "append" if key.repeatable else "store"
        group.add_argument(flag_name(key.name), metavar=key.metavar, action=action, help=help_text)


def _add_anonymous_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--anonymous",
        action="store_true",
        help="read public buckets (gs://) without credentials",
    )


def _parse_count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, got {text!r}")
    return count


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
