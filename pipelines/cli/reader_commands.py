"""The commands for finished datasets; see `commands`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from shardbeam.configs.keys import named
from shardbeam.configs.schema import FindingKind
from shardbeam.pipelines.cli.base import (
    BEAM_EPILOG,
    Anonymous,
    Arguments,
    Count,
    JsonResult,
    Overwrite,
    Report,
)

_Examples = Annotated[int, msgspec.Meta(ge=1, le=1000, description="a whole number from 1 to 1000")]


# The kinds of `readers.predictions`, the same in a test.
PredictedKind = Literal["likely_wrong_class", "likely_missing_object", "badly_placed"]


class DatasetArguments(Arguments, frozen=True, kw_only=True):
    """What the commands that read one dataset have in common.

    Attributes:
        path: A dataset's folder, a folder of TFRecord files, or a TFRecord file.
    """

    WORDS = {"path": "PATH"}

    path: str


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
    anonymous: Anonymous = False


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
       shardbeam show PATH --image N | --key NAME [--output FILE.png] [--json]
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
        Count | None,
        named(
            "how many Examples (default: 3), rejects or corrections (20), findings of a kind (10)",
            metavar="N",
        ),
    ] = None
    image: Annotated[
        Count | None, named("the Example of this number in its split, from 1", metavar="N")
    ] = None
    key: Annotated[
        str | None,
        named("the Examples of the image with this path (image/filename)", metavar="NAME"),
    ] = None
    output: Annotated[
        str | None,
        named("draw the picture with its annotations into this PNG file", metavar="FILE"),
    ] = None
    overwrite: Overwrite = False
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
    anonymous: Anonymous = False


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
    EPILOG = BEAM_EPILOG

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
    report: Report = None
    overwrite: Overwrite = False
    json: JsonResult = False
    anonymous: Anonymous = False


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
    EPILOG = BEAM_EPILOG

    beam_options: Mapping[str, Any]
    recount: Annotated[
        bool, named("read the shards and count them again, instead of statistics.json")
    ] = False
    report: Report = None
    overwrite: Overwrite = False
    json: JsonResult = False
    anonymous: Anonymous = False


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
    overwrite: Overwrite = False
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
    anonymous: Anonymous = False


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
        Count | None,
        named("examples to name for each kind of change (default: 10)", metavar="N"),
    ] = None
    examples: Annotated[
        int,
        msgspec.Meta(ge=0, description="a whole number from 0 up"),
        named(
            "images to read, to print what changed in them (default: 50; 0 reads no shard)",
            metavar="N",
        ),
    ] = 50
    json: JsonResult = False
    anonymous: Anonymous = False


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
    anonymous: Anonymous = False
