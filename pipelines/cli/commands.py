"""The commands: each is a class, and its fields with a help text are the command's flags.

All flags and texts of help are on this one page, so it is longer than other modules. The commands
come in the order of `COMMANDS`, after what several of them have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from shardbeam.configs.keys import named
from shardbeam.configs.schema import Config, FindingKind

# The kinds of `readers.predictions`, the same in a test.
PredictedKind = Literal["likely_wrong_class", "likely_missing_object", "badly_placed"]

# Types of values.
_Count = Annotated[int, msgspec.Meta(ge=1, description="a whole number from 1 up")]
_CountOrZero = Annotated[int, msgspec.Meta(ge=0, description="a whole number from 0 up")]
_Examples = Annotated[int, msgspec.Meta(ge=1, le=1000, description="a whole number from 1 to 1000")]
_Side = Annotated[int, msgspec.Meta(ge=64, le=4096, description="a whole number from 64 to 4096")]
# Flags of several commands.
_Anonymous = Annotated[bool, named("read public buckets (gs://) without credentials")]
_JsonResult = Annotated[bool, named("print the result as one JSON object")]
_Report = Annotated[
    str | None,
    named("write the result as JSON to this file; needed with --runner", metavar="URI"),
]
_Overwrite = Annotated[
    bool,
    named("replace any file of this name (default: only an older one of this dataset)"),
]
# For commands that run a job to read a dataset.
_BEAM_EPILOG = """\
All pipeline options of Apache Beam work, too. Without --runner, it runs on this machine.
"""


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a command; a field with a help text (`named`) is a flag.

    Attributes:
        RUN: `module:function` in `pipelines` that runs the command and returns its exit code.
        WORDS: `{field: its name in messages}` for the words after the command, in order.
        USAGE: The first lines of its help.
        HELP: What it does.
        EPILOG: The last lines of its help.
    """

    RUN: ClassVar[str] = ""
    WORDS: ClassVar[Mapping[str, str]] = {}
    USAGE: ClassVar[str]
    HELP: ClassVar[str | None] = None
    EPILOG: ClassVar[str | None] = None


class DatasetArguments(Arguments, frozen=True, kw_only=True):
    """What the commands that read one dataset have in common.

    Attributes:
        path: A dataset's folder, a folder of TFRecord files, or a TFRecord file.
    """

    WORDS = {"path": "PATH"}

    path: str


class RunArguments(Arguments, frozen=True, kw_only=True):
    """What all commands that write a dataset have in common.

    Attributes:
        beam_options: Keyword arguments of Beam's `PipelineOptions` that differ from the defaults.
    """

    beam_options: Mapping[str, Any]
    overwrite: Annotated[bool, named("replace a dataset that is there already")] = False
    processes: Annotated[
        _Count | None,
        named(
            "processes that write shards, per worker (default: 1; for a large build on this "
            "machine one per CPU, at most 8)",
            metavar="N",
        ),
    ] = None
    threads: Annotated[
        _Count | None,
        named(
            "threads that read images in each of these processes (default: its CPUs plus one)",
            metavar="N",
        ),
    ] = None
    memory: Annotated[
        _Count | None,
        named(
            "MB of memory for decoding images in each of these processes; an image that needs "
            "more is decoded alone (default: 500, or less if memory is scarce)",
            metavar="MB",
        ),
    ] = None
    read_ahead: Annotated[
        _Count | None,
        named(
            "images that each of these processes reads from object storage at a time (default: 32)",
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


class InitArguments(Arguments, frozen=True, kw_only=True):
    """`init`.

    Attributes:
        path: The folder to look at, or a file in it.
    """

    RUN = "commands.init:run_init"
    WORDS = {"path": "DIR"}
    USAGE = "shardbeam init DIR [--output FILE] [--format FORMAT]"
    HELP = """\
Looks at a folder, says which dataset it recognizes there, and prints a config with comments.

DIR may also be a file: its folder is read, with that file before others of its kind.

It reads only names and the beginnings of files. If more than one format fits, or you have to
decide something, it says what it sees and writes nothing.
"""

    path: str
    output: Annotated[str | None, named("write the config to this file", metavar="FILE")] = None
    overwrite: Annotated[bool, named("replace the file if it exists")] = False
    format: Annotated[str | None, named("look only for this format", metavar="FORMAT")] = None
    anonymous: _Anonymous = False


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


class FormatsArguments(Arguments, frozen=True, kw_only=True):
    """`formats`.

    Attributes:
        format: A format; empty for the list of all.
    """

    RUN = "commands.formats:run_formats"
    WORDS = {"format": "FORMAT"}
    USAGE = "shardbeam formats [FORMAT]"
    HELP = """\
Lists the formats of images and annotations, and the flags of each.

With FORMAT, it prints the same as `shardbeam build FORMAT --help`: an example and the flags. A
format of your own is package.module:Class or path/to/file.py:Class; its code is run.
"""

    format: str = ""


class ShowArguments(DatasetArguments, frozen=True, kw_only=True):
    """`show`."""

    RUN = "commands.show:run_show"
    USAGE = """\
shardbeam show PATH [--split NAME] [--limit N] [--json]
       shardbeam show PATH --image N | --key NAME [--output FILE.svg] [--json]
       shardbeam show PATH --rejects | --corrections [--split NAME] [--limit N] [--json]
       shardbeam show PATH --findings [KIND] [--split NAME] [--limit N | --all] [--json]
           [--index DIR | --predictions FILE]"""
    HELP = """\
Prints the splits of a dataset and the first Examples of one of them; or one Example by number or
key; or draws its picture with all annotations; or prints what was rejected or corrected, or what
is worth a look.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file; with --rejects and
--corrections a dataset's folder, or the output folder of a build that was refused.
"""

    split: Annotated[
        str | None,
        named("which split (default: the first; with --key, and for what is listed: all)"),
    ] = None
    limit: Annotated[
        _Count | None,
        named(
            "how many Examples (default: 3), rejects or corrections (20), findings of a kind (10)",
            metavar="N",
        ),
    ] = None
    image: Annotated[
        _Count | None, named("the Example of this number in its split, from 1", metavar="N")
    ] = None
    key: Annotated[
        str | None,
        named("the Examples of the image with this path (image/filename)", metavar="NAME"),
    ] = None
    output: Annotated[
        str | None,
        named(
            "draw the picture with its annotations into this file, .svg or .html", metavar="FILE"
        ),
    ] = None
    overwrite: _Overwrite = False
    rejects: Annotated[bool, named("print what was rejected, and why")] = False
    corrections: Annotated[
        bool, named("print what was corrected in Examples, with the values before and after")
    ] = False
    findings: Annotated[
        Literal[FindingKind, PredictedKind] | bool,
        named("print the images that are worth a look, of all kinds or of one", metavar="KIND"),
    ] = False
    all: Annotated[
        bool, named("with --findings, print the keys of all these images, one on each line")
    ] = False
    index: Annotated[
        str | None,
        named(
            "with --findings, for other TFRecord files: the folder of their indexes (shardbeam "
            "index)",
            metavar="DIR",
        ),
    ] = None
    predictions: Annotated[
        str | None,
        named(
            "with --findings, print instead the labels that a model disagrees with: COCO results "
            "(.json), or class probabilities by key (.csv, .parquet)",
            metavar="FILE",
        ),
    ] = None
    json: Annotated[bool, named("print one JSON object; bytes that are not text are described")] = (
        False
    )
    anonymous: _Anonymous = False


class StatsArguments(DatasetArguments, frozen=True, kw_only=True):
    """`stats`.

    Attributes:
        beam_options: As in `BuildArguments`.
    """

    RUN = "commands.stats:run_stats"
    USAGE = "shardbeam stats PATH [--recount] [--json] [flags]"
    HELP = """\
Prints what is in each split of a dataset: images by size and format, objects by class and size,
classes that occur together in images, and classes that are rare or in only one split.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file. Shardbeam
counts a dataset while it writes it (statistics.json); other files are read and counted.
"""
    EPILOG = _BEAM_EPILOG

    beam_options: Mapping[str, Any]
    recount: Annotated[
        bool, named("read the shards and count them again, instead of statistics.json")
    ] = False
    report: _Report = None
    overwrite: _Overwrite = False
    json: _JsonResult = False
    anonymous: _Anonymous = False


class ReportArguments(DatasetArguments, frozen=True, kw_only=True):
    """`report`."""

    RUN = "commands.report:run_report"
    USAGE = "shardbeam report PATH [--output FILE] [--examples N | --keys FILE] [flags]"
    HELP = """\
Writes an HTML page about a dataset: its splits and classes, pictures with their annotations,
rejects, corrections, and where it comes from. The page needs no network and no other file.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file.
"""

    output: Annotated[str, named("the page to write (default: report.html)", metavar="FILE")] = (
        "report.html"
    )
    overwrite: _Overwrite = False
    examples: Annotated[
        _Examples | None,
        named("show at most this many pictures (default: as many as fit, up to 1000)", metavar="N"),
    ] = None
    keys: Annotated[
        str | None,
        named("show the pictures in this file, which has one key per line", metavar="FILE"),
    ] = None
    images: Annotated[
        list[str],
        named(
            "folder of the source's images, to show rejected ones (repeatable)",
            metavar="DIR",
        ),
    ] = []
    previous: Annotated[
        str | None,
        named(
            "an earlier dataset, to show what has changed since; of the images that differ, the "
            "Examples of the first 50 are read",
            metavar="PATH",
        ),
    ] = None
    predictions: Annotated[
        str | None,
        named(
            "show the labels that a model disagrees with, which has not seen these pictures: COCO "
            "results (.json), or class probabilities by key (.csv, .parquet)",
            metavar="FILE",
        ),
    ] = None
    split: Annotated[
        str | None, named("with --predictions, the split that they are of (default: all)")
    ] = None
    anonymous: _Anonymous = False


class DiffArguments(Arguments, frozen=True, kw_only=True):
    """`diff`.

    Attributes:
        old: Folder of a dataset.
        new: Folder of another.
    """

    RUN = "commands.diff:run_diff"
    WORDS = {"old": "OLD", "new": "NEW"}
    USAGE = "shardbeam diff OLD NEW [--limit N] [--examples N] [--json]"
    HELP = """\
Compares two datasets by their indexes, and prints which examples were added, removed, renamed,
moved to another split or changed, and their statistics side by side. Of the images that are in both
and differ, it reads the Examples of the first 50, and prints what changed in them: another class, a
box that moved, another label. No other Example is read.

OLD and NEW are folders of datasets, or files that name them (output.latest). The exit code is 0
even if they differ; "same" in the JSON says whether they do.
"""

    old: str
    new: str
    limit: Annotated[
        _Count | None,
        named("examples to name for each kind of change (default: 10)", metavar="N"),
    ] = None
    examples: Annotated[
        _CountOrZero,
        named(
            "images to read, to print what changed in them (default: 50; 0 reads no shard)",
            metavar="N",
        ),
    ] = 50
    json: _JsonResult = False
    anonymous: _Anonymous = False


class VerifyArguments(DatasetArguments, frozen=True, kw_only=True):
    """`verify`.

    Attributes:
        beam_options: As in `BuildArguments`.
    """

    RUN = "commands.verify:run_verify"
    USAGE = "shardbeam verify PATH [--decode | --quick] [--repair CONFIG.yaml] [flags]"
    HELP = """\
Reads every byte of a dataset, compares it with the dataset's own manifest, and prints what is
wrong. The exit code is 5 if anything is.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file.
"""
    EPILOG = _BEAM_EPILOG

    beam_options: Mapping[str, Any]
    decode: Annotated[bool, named("decode all images, strictly")] = False
    quick: Annotated[bool, named("compare names and sizes, and read no shard")] = False
    repair: Annotated[
        str | None,
        named(
            "rebuild the damaged shards, with the config file that the dataset was built from",
            metavar="CONFIG",
        ),
    ] = None
    report: _Report = None
    overwrite: _Overwrite = False
    json: _JsonResult = False
    anonymous: _Anonymous = False


class IndexArguments(DatasetArguments, frozen=True, kw_only=True):
    """`index`."""

    RUN = "commands.index:run_index"
    USAGE = "shardbeam index PATH --output DIR [--idx]"
    HELP = """\
Reads TFRecord files, and writes an index of each, with which shardbeam.open reads any record, and
show --findings says which are worth a look.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file. A dataset of
Shardbeam has its index already; one of an older version may lack the classes of each Example,
or those that its map shows.
"""

    output: Annotated[str, named("folder to write to, outside the dataset", metavar="DIR")]
    idx: Annotated[
        bool,
        named("also write NAME.idx, which NVIDIA DALI and the package tfrecord read"),
    ] = False
    overwrite: Annotated[bool, named("replace indexes that are there already")] = False
    anonymous: _Anonymous = False


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
    EPILOG = _BEAM_EPILOG

    path: str
    container: Annotated[str, named("kind of the new files (output.container)", metavar="NAME")]
    output: Annotated[str, named("folder of the new dataset", metavar="DIR")]

    @property
    def output_path(self) -> str:
        """The new dataset's folder."""
        return self.output


class ExportArguments(DatasetArguments, frozen=True, kw_only=True):
    """`export`."""

    RUN = "commands.export:run_export"
    USAGE = "shardbeam export PATH --format coco|yolo --output DIR [--split NAME] [flags]"
    HELP = """\
Writes the images of a dataset as files again, with annotations in COCO's or YOLO's layout, and
prints what the dataset does not hold any more.

PATH is the folder of a dataset, a folder of TFRecord files, or a TFRecord file; on disk or in
object storage. DIR is a folder on disk.
"""

    format: Annotated[
        Literal["coco", "yolo"],
        named("layout: coco (JSON files) or yolo (Ultralytics)", metavar="{coco,yolo}"),
    ]
    output: Annotated[str, named("folder to write to, new or empty", metavar="DIR")]
    split: Annotated[str | None, named("which split (default: all)")] = None
    task: Annotated[
        Literal["detect", "segment", "pose"] | None,
        named(
            "with yolo: write boxes, outlines of masks, or boxes with keypoints (default: pose or "
            "segment, if the dataset has these)",
            metavar="{detect,segment,pose}",
        ),
    ] = None
    overwrite: Annotated[
        bool, named("replace an earlier export, with everything in its folders")
    ] = False
    anonymous: _Anonymous = False


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
    images: Annotated[_Count, named("how many images", metavar="N")]
    seed: Annotated[
        _CountOrZero,
        named("decides what is drawn (default: 0)", metavar="S"),
    ] = 0
    workers: Annotated[
        _Count | None, named("threads that draw (default: one per CPU)", metavar="W")
    ] = None
    width: Annotated[
        _Side, named("width of the annotated pictures (default: 640)", metavar="PX")
    ] = 640
    height: Annotated[
        _Side, named("height of the annotated pictures (default: 480)", metavar="PX")
    ] = 480


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
