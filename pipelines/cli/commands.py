"""The commands: each is a class, and its fields with a help text are the command's flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from shardbeam.configs.keys import named
from shardbeam.configs.schema import Config
from shardbeam.pipelines.cli.base import BEAM_EPILOG, Anonymous, Arguments, Count
from shardbeam.pipelines.cli.reader_commands import (
    DiffArguments,
    ExportArguments,
    FormatsArguments,
    IndexArguments,
    ReportArguments,
    ShowArguments,
    StatsArguments,
    VerifyArguments,
)

_Side = Annotated[int, msgspec.Meta(ge=64, le=4096, description="a whole number from 64 to 4096")]


class RunArguments(Arguments, frozen=True, kw_only=True):
    """What all commands that write a dataset have in common.

    Attributes:
        beam_options: Keyword arguments of Beam's `PipelineOptions` that differ from the defaults.
    """

    beam_options: Mapping[str, Any]
    overwrite: Annotated[bool, named("replace a dataset that is there already")] = False
    processes: Annotated[
        Count | None,
        named(
            "processes that write shards, per worker (default: 1; for a large build on this "
            "machine one per CPU, at most 8)",
            metavar="N",
        ),
    ] = None
    threads: Annotated[
        Count | None,
        named(
            "threads that read images in each of these processes (default: its CPUs plus one)",
            metavar="N",
        ),
    ] = None
    memory: Annotated[
        Count | None,
        named(
            "MB of memory for decoding images in each of these processes; an image that needs "
            "more is decoded alone (default: 500, or less if memory is scarce)",
            metavar="MB",
        ),
    ] = None
    read_ahead: Annotated[
        Count | None,
        named(
            "images that each of these processes reads from object storage at a time (default: 32)",
            metavar="N",
        ),
    ] = None
    anonymous: Anonymous = False
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
            "write logs, progress and the summary to stderr as text, or as one JSON object per "
            "line for Cloud Logging (default: text)",
            metavar="{text,json}",
        ),
    ] = "text"
    verbose: Annotated[bool, named("log what Beam does, and the traceback of each error")] = False


class BuildArguments(RunArguments, frozen=True, kw_only=True):
    """`build` and `plan`.

    Attributes:
        command: `build` or `plan`.
        config: What to build.
        damage: Damage that `verify` found; with `if_changed`, the build repairs it.
    """

    RUN = "cli.run:run_build"

    USAGE = """\
shardbeam {command} CONFIG.yaml [--set KEY=VALUE]... [flags]
       shardbeam {command} FORMAT ... --output DIR [flags], such as
       shardbeam {command} coco --images DIR --annotations FILE --output DIR
       shardbeam {command} image-folder --images DIR --output DIR"""
    EPILOG = """\
FORMAT is one that `shardbeam formats` lists, or one of your own: package.module:Class or
path/to/file.py:Class; its code is run.
A key of the config with a single value is also a flag: --max-side 512, --seed 3.
All pipeline options of Apache Beam work, too: --runner, --direct_num_workers, --project and so
on. Without --runner, the build runs on this machine and needs only this package.
"""

    command: str
    config: Config
    damage: Sequence[str] = ()
    set: Annotated[
        list[str],
        named(
            "override a key of the config, such as image.quality=90 (repeatable)",
            metavar="KEY=VALUE",
        ),
    ] = []
    if_changed: Annotated[
        bool,
        named(
            "do nothing if the dataset there was built from these inputs and this config; repair "
            "it if its files are missing or truncated"
        ),
    ] = False
    reuse: Annotated[
        str | None,
        named(
            "copy unchanged shards from this dataset instead of reading their images: its folder, "
            "or a file that names it (output.latest)",
            metavar="PREVIOUS",
        ),
    ] = None

    @property
    def output_path(self) -> str:
        """The dataset's folder, as the config names it."""
        return self.config.output.path


class ConvertArguments(RunArguments, frozen=True, kw_only=True):
    """`convert`.

    Attributes:
        path: Folder of a dataset.
    """

    RUN = "commands.convert:run_convert"
    WORDS = {"path": "PATH"}
    USAGE = "shardbeam convert PATH --container NAME --output DIR [flags]"
    HELP = """\
Writes the Examples of a dataset into files of another kind, such as array_record: with the same
splits, shards and order, and with an index, statistics and a manifest of their own.

PATH is the folder of a dataset of Shardbeam in any container, or a file that names it
(output.latest). For TFRecord files of other programs: shardbeam build tfrecord.
"""
    EPILOG = BEAM_EPILOG

    path: str
    container: Annotated[str, named("kind of the new files (output.container)", metavar="NAME")]
    output: Annotated[str, named("folder of the new dataset", metavar="DIR")]

    @property
    def output_path(self) -> str:
        """The new dataset's folder."""
        return self.output


class SampleArguments(Arguments, frozen=True, kw_only=True):
    """`sample shapes`."""

    RUN = "commands.sample:run_sample"
    WORDS = {"kind": "shapes"}
    USAGE = "shardbeam sample shapes --output DIR --images N [--seed S] [flags]"
    HELP = """\
Draws circles, squares, triangles and stars: pictures with COCO's annotations, and a folder for each
shape with pictures of 160 to 224 pixels.
"""

    kind: Literal["shapes"]
    output: Annotated[str, named("folder to write to", metavar="DIR")]
    images: Annotated[Count, named("how many images", metavar="N")]
    seed: Annotated[
        int,
        msgspec.Meta(ge=0, description="a whole number from 0 up"),
        named("decides what is drawn (default: 0)", metavar="S"),
    ] = 0
    workers: Annotated[
        Count | None, named("processes that draw (default: one per CPU)", metavar="W")
    ] = None
    width: Annotated[
        _Side, named("width of the annotated pictures (default: 640)", metavar="PX")
    ] = 640
    height: Annotated[
        _Side, named("height of the annotated pictures (default: 480)", metavar="PX")
    ] = 480


class InitArguments(Arguments, frozen=True, kw_only=True):
    """`init`.

    Attributes:
        path: The folder to look at.
    """

    RUN = "commands.init:run_init"
    WORDS = {"path": "DIR"}
    USAGE = "shardbeam init DIR [--output FILE] [--format FORMAT]"
    HELP = """\
Looks at a folder, says which dataset it recognizes there, and prints a config with comments.

It reads only names and the beginnings of files. If more than one format fits, or you have to
decide something, it says what it sees and writes nothing.
"""

    path: str
    output: Annotated[str | None, named("write the config to this file", metavar="FILE")] = None
    overwrite: Annotated[bool, named("replace the file if it exists")] = False
    format: Annotated[str | None, named("look only for this format", metavar="FORMAT")] = None
    anonymous: Anonymous = False


class UnpackArguments(Arguments, frozen=True, kw_only=True):
    """`unpack`.

    Attributes:
        path: A folder of Parquet files, or one file.
    """

    RUN = "commands.unpack:run_unpack"
    WORDS = {"path": "PATH"}
    USAGE = "shardbeam unpack PATH --to DIR"
    HELP = """\
Writes the Parquet files of a folder again, with images that are neither compressed nor dictionary
encoded, so that a build reads them where they are. Other columns keep their values. README.md and
JSON files are copied.

The old files stay, so the disk needs room for both. After an interrupt, the same command goes on
with the files that are not there yet.
"""

    path: str
    to: Annotated[str, named("folder to write to, new or empty", metavar="DIR")]


class TopArguments(Arguments, frozen=True, kw_only=True):
    """The program without a command."""

    USAGE = "shardbeam [--help] [--version] COMMAND ..."
    HELP = """\
Turns image files and their annotations into sharded TFRecord files of tf.train.Example.

commands:
  build     build a dataset, from a config file or from flags
  plan      print what build would write, and write nothing
  init      look at a folder, and write a config for what is in it
  unpack    write Parquet files again, with images that are not compressed
  formats   list the formats of images and annotations, and the flags of each
  show      print or draw Examples of a dataset, or of any TFRecord file
  stats     print what is in a dataset, or in any TFRecord file: classes, sizes, splits
  report    write a page of HTML about a dataset, with pictures
  diff      compare two datasets: examples added, removed, moved and changed, and how
  verify    read every byte of a dataset, and print what is wrong with it
  index     write an index of TFRecord files, for reading any record of them
  convert   write a dataset into files of another kind
  export    write a dataset as image files with COCO or YOLO annotations
  sample    draw a small dataset to try things with

shardbeam COMMAND --help explains a command, shardbeam build FORMAT --help a format.

exit codes: 0 done, 1 failed, 2 wrong usage or config, 3 too many rejects or not what the config
expects, 4 another run writes to the output, 5 verify has found damage, 130 interrupted
"""


COMMANDS: dict[str, type[Arguments]] = {
    "build": BuildArguments,
    "plan": BuildArguments,
    "init": InitArguments,
    "unpack": UnpackArguments,
    "formats": FormatsArguments,
    "show": ShowArguments,
    "stats": StatsArguments,
    "report": ReportArguments,
    "diff": DiffArguments,
    "verify": VerifyArguments,
    "index": IndexArguments,
    "convert": ConvertArguments,
    "export": ExportArguments,
    "sample": SampleArguments,
}
