"""Command lines: their meaning, and the errors of wrong ones."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import msgspec
import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    PipelineOptions,
    StandardOptions,
)

from shardbeam.configs.keys import flag_name
from shardbeam.configs.load import ConfigError
from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.commands import COMMANDS, BuildArguments, SampleArguments
from shardbeam.pipelines.cli.flags import describe_format, flags_of, make_parser
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.runners.options import REFUSED_FLAGS, beam_parser
from shardbeam.transforms.formats.base import FormatError, built_in_formats
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from tests.support.dataset import run
from tests.support.screens import check_screen

COCO = "build coco --images i --annotations a.json --output o"
FOLDERS = "build image-folder --images i --output o"
TESTS = Path(__file__).parent
FORMATS = ", ".join(built_in_formats())
CONFIG = "name: d\nsplits: {train: {format: image-folder, images: i}}\noutput: {path: o}\n"


def parse_build(line: str) -> BuildArguments:
    arguments = parse_arguments(shlex.split(line))
    assert isinstance(arguments, BuildArguments)
    return arguments


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config that is `d.yaml` in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.yaml").write_text(CONFIG)


def test_coco_from_flags() -> None:
    arguments = parse_build(f"{COCO} --annotations b.json")
    assert arguments.command == "build"
    assert arguments.config.name == "coco"
    assert arguments.config.version == "1.0.0"
    assert arguments.config.splits == {
        "train": CocoFormat(format="coco", images="i", annotations=["a.json", "b.json"])
    }
    assert arguments.config.output.path == "o"
    assert arguments.beam_options == {}
    assert arguments.threads is None
    flags = (arguments.overwrite, arguments.if_changed, arguments.json, arguments.verbose)
    assert not any(flags)


def test_all_flags_of_a_dataset() -> None:
    arguments = parse_build(
        f"{FOLDERS} --classes c.txt --fractions train=0.8,validation=0.2 --group-by '^[^/]+/'"
        " --name flowers --version 2.0.0 --set image.quality=90 --set image.max_side=64"
    )
    config = arguments.config
    assert config.source == ImageFolderFormat(format="image-folder", images="i", classes="c.txt")
    assert config.fractions == {"train": 0.8, "validation": 0.2}
    assert (config.name, config.version, config.group_by) == ("flowers", "2.0.0", "^[^/]+/")
    assert (config.image.quality, config.image.max_side) == (90, 64)


def test_names_by_default() -> None:
    assert parse_build(FOLDERS).config.name == "image_folder"
    assert list(parse_build(f"{FOLDERS} --split test").config.splits) == ["test"]


@pytest.mark.usefixtures("config_file")
def test_a_config_file_and_all_flags_of_a_run() -> None:
    arguments = parse_build(
        "plan d.yaml --set rejects.max_ratio=0.5 --overwrite --if-changed --threads 3 --json"
        " --verbose"
    )
    assert arguments.command == "plan"
    assert arguments.config.rejects.max_ratio == 0.5
    assert arguments.threads == 3
    assert arguments.overwrite
    assert arguments.if_changed
    assert arguments.json
    assert arguments.verbose


@pytest.mark.usefixtures("config_file")
@pytest.mark.parametrize(
    "line",
    [
        "build d.yaml --runner PrismRunner --parallelism=-1 --json",
        "build --runner PrismRunner d.yaml --parallelism=-1 --json",
        "--runner PrismRunner build --json --parallelism=-1 d.yaml",
        "--parallelism=-1 --json --runner PrismRunner build d.yaml",
    ],
)
def test_flags_stand_anywhere(line: str) -> None:
    arguments = parse_build(line)
    assert arguments.beam_options == {"runner": "PrismRunner"}
    assert arguments.json


def test_a_config_does_not_stand_before_the_command() -> None:
    with pytest.raises(UsageError, match=r"^expected a command .* first, got 'd\.yaml'$"):
        parse_arguments(["d.yaml", "--runner", "PrismRunner", "build"])


def test_beams_flags_become_its_options() -> None:
    arguments = parse_build(
        f"{COCO} --direct_num_workers 2 --direct_running_mode=in_memory"
        " --experiments a,b --experiment c --no_save_main_session"
    )
    options = PipelineOptions([], **arguments.beam_options)
    assert options.view_as(DirectOptions).direct_num_workers == 2
    assert options.view_as(DirectOptions).direct_running_mode == "in_memory"
    assert options.view_as(DebugOptions).experiments == ["a", "b", "c"]
    assert options.get_all_options(drop_default=True) == arguments.beam_options


@pytest.mark.parametrize(
    ("name", "runner"),
    [
        ("DirectRunner", "DirectRunner"),
        ("directrunner", "DirectRunner"),
        ("direct", "DirectRunner"),
        ("dataflow", "DataflowRunner"),
        ("my.module.Runner", "my.module.Runner"),
    ],
)
def test_runners_have_one_spelling(name: str, runner: str) -> None:
    options = PipelineOptions([], **parse_build(f"{COCO} --runner {name}").beam_options)
    assert options.view_as(StandardOptions).runner == runner


def test_no_flag_of_ours_is_beams() -> None:
    beam = beam_parser()
    beams = set(beam._option_string_actions) - {"-h", "--help"}
    assert len(beams) > 100
    ours = {flag_name(name) for flags in flags_of(BuildArguments).values() for name in flags}
    assert not beams & ours


def test_flags_of_beam_that_make_no_sense_are_refused() -> None:
    assert REFUSED_FLAGS.keys() <= beam_parser()._option_string_actions.keys()
    lines = {f"{COCO} {flag}": flag for flag in REFUSED_FLAGS}
    lines |= {f"--streaming {COCO}": "--streaming", f"{COCO} --streaming=1": "--streaming"}
    for line, flag in lines.items():
        with pytest.raises(UsageError, match=rf"^{flag} is refused: it "):
            parse_arguments(shlex.split(line))


WRONG = (
    # Commands and words.
    "biuld coco",
    "--json",
    "--name build",
    "build",
    "build my photos coco --images x",
    "build webdataset --tars a.tar . ..",
    "plan cocoo",
    "build x.yaml",
    "build .",
    "build coco",
    "build coco --panoptic x",
    f"build coco --images {__file__} --annotations {TESTS} --output x",
    # A section of the config has a similar name.
    f"{COCO} --image a",
    # Flags.
    f"{COCO} --runnr X",
    f"{COCO} --runnr=X",
    f"{COCO} -runner X",
    f"{COCO} --run X",
    f"{COCO} --group_by x",
    f"{COCO} --direct-num-workers 2",
    f"{COCO} --zzzzzz",
    # Names of other tools, of which the nearest flag is none.
    f"{COCO} --workers 4",
    f"{COCO} --num-workers 4",
    f"{COCO} --resize 640",
    f"{COCO} --val-split=0.2",
    f"{COCO} --input x",
    f"{COCO} --rename a=b",
    f"{COCO} --class-map x",
    f"{COCO} --include a",
    f"{COCO} --path a",
    f"{COCO} --max-side x",
    f"{COCO} --runner",
    f"{COCO} --runner DirektRunner",
    # Runners that were never tried, and one that loses elements.
    f"{COCO} --runner SparkRunner",
    f"{COCO} --runner spark",
    f"{COCO} --runner apache_beam.runners.portability.spark_runner.SparkRunner",
    f"{COCO} --runner kafkastreams",
    f"{COCO} --runner DaskRunner",
    f"{COCO} --runner apache_beam.runners.dask.dask_runner.DaskRunner",
    f"{COCO} --runner ray_beam.portability.ray_runner.RayFnApiRunner",
    f"{COCO} --runner BundleBasedDirectRunner",
    f"{COCO} --direct_num_workers x",
    # The first one hangs, and the other loses elements.
    f"{COCO} --direct_running_mode=multi_processing --direct_num_workers=2",
    f"{COCO} --direct_running_mode=multi_threading --direct_num_workers=2",
    f"{COCO} --threads 0",
    f"{COCO} --processes 0",
    f"{COCO} --json=1",
    f"{COCO} --log-format xml",
    f"{COCO} --gcs_custom_audit_entries=x",
    # Flags that stand for a config.
    "build coco --images i --output o",
    "plan image-folder --images i",
    f"{COCO} --classes c",
    "build csv --images c --output o",
    "build coco --images i --manifest c --output o",
    # With a config file, `--set` does what flags do without.
    "build d.yaml --images x",
    "build d.yaml --annotations x",
    "build d.yaml --classes x",
    "build d.yaml --split x",
    f"{FOLDERS} --annotations c",
    f"{COCO} --images ''",
    f"{COCO} --fractions a=0.5",
    f"{COCO} --fractions a=0.5,a=0.5",
    f"{COCO} --fractions a=1 --split b",
    f"{COCO} --group-by x",
    f"{COCO} --exact",
    f"{COCO} --stratify",
    f"{COCO} --set image.qualty=3",
    "init",
    "init a b",
    "formats coco yolo",
    # A format of one's own.
    "build mine.py:Boxes --output o",
    "build mine.py:Boxes --classes c",
    "build mine.py:Boxes --images i --labels night --output o",
    "build mine.py:Boxes --images i --scale x",
    "plan mine.py:Bxes",
    "plan no.py:Boxes",
    # The sample.
    "sample",
    "sample squares",
    "sample shapes",
    "sample shapes --output o --images 3 --seed -1",
    "sample shapes --output o --images 3 --width 63",
    "sample shapes --output o --images 3 --workers 0",
    "sample shapes --output o --images 0",
    "sample shapes --output o --imagse 3",
    "sample shapes --output o --images 3 --runner X",
    # Commands that read a dataset.
    "show",
    "--split show",
    "show a b",
    "a show",
    "show a --limit 0",
    "show a --limit 1.5",
    "show a --spilt b",
    "show a --image 0",
    "show a --findings thin_boxes",
    "diff a",
    "diff a b c",
    "diff a b --examples -1",
    "diff a b --limit 0",
    "report",
    "report a b",
    "report a --examples 0",
    "report a --example 3",
    "verify",
    "verify a --quick --decode",
    "verify a --decod",
)
# What only the commands themselves refuse.
WRONG_TOGETHER = (
    "show a --image 1 --key b",
    "show a --rejects --output b.svg",
    "show a --output b.html --json",
    "show a --output b.png",
    "show a --output svg",
    "show a --findings --rejects",
    "show a --all",
    "show a --index x",
    "show a --findings --image 1",
    "report a --output=",
)


@pytest.mark.usefixtures("config_file")
def test_wrong_command_lines() -> None:
    Path("mine.py").write_text(OWN)
    shown = ""
    for line in WRONG:
        with pytest.raises((UsageError, ConfigError, FormatError)) as caught:
            parse_arguments(shlex.split(line))
        shown += f"$ shardbeam {line}\n{caught.value}\n"
    for line in WRONG_TOGETHER:
        result = run(*shlex.split(line))
        assert (result.exit_code, result.stdout) == (2, "")
        shown += f"$ shardbeam {line}\n{result.stderr}"
    for text, name in (
        (FORMATS, "FORMATS"),
        (", ".join(COMMANDS), "COMMANDS"),
        (str(TESTS), "TESTS"),
        (os.getcwd(), "FOLDER"),
    ):
        shown = shown.replace(text, name)
    check_screen("wrong_command_lines", shown)


@pytest.mark.usefixtures("config_file")
@pytest.mark.parametrize("target", ["build d.yaml", COCO])
def test_keys_of_one_value_are_flags_by_their_last_name(target: str) -> None:
    config = parse_build(
        f"{target} --masks png --max-side 512 --max_pixels=9 --num-shards 4 --seed 3 "
        "--description 'a: b' --max-ratio 0.5 --seed 4 --output o2 --name n2 "
        "--set labels.include=cat"
    ).config
    assert (config.masks, config.image.max_side, config.image.max_pixels) == ("png", 512, 9)
    assert (config.output.num_shards, config.seed, config.description) == (4, 4, "a: b")
    assert config.labels.include == ["cat"]
    assert (config.rejects.max_ratio, config.output.path, config.name) == (0.5, "o2", "n2")


@pytest.mark.parametrize("name", sorted(built_in_formats()))
def test_each_format_has_a_help_of_its_own(name: str) -> None:
    text = describe_format(name)
    assert text.startswith(f"usage: shardbeam build {name} --")
    assert built_in_formats()[name].SUMMARY in text
    assert ("--panoptic-masks" in text) == (name == "coco")


OWN = """
from typing import Annotated

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.formats.base import Format, Kind


class Boxes(Format):
    SUMMARY = "Boxes of mine"
    kinds = frozenset({Kind.DETECTION})

    images: Annotated[Location, named("where the images are", metavar="DIR")]
    scale: float = 1.0
    marks: list[int] = []
    names: dict[str, str] = {}
    threads: int = 7
    labels: str = ""
"""


def test_a_format_of_ones_own_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    arguments = parse_build(
        "build mine.py:Boxes --images i --scale 2.5 --marks 3 --marks 4 --threads 5 --output o"
        " --split test --max-side 9"
    )
    assert (arguments.threads, arguments.config.name) == (5, "boxes")
    ((path, source),) = arguments.config.sources()
    assert path == ("splits", "test")
    assert msgspec.structs.asdict(source) == {
        "format": "mine.py:Boxes",
        "images": "i",
        "scale": 2.5,
        "marks": [3, 4],
        "names": {},
        "threads": 7,
        "labels": "",
    }
    text = describe_format("mine.py:Boxes")
    assert text.startswith("usage: shardbeam build mine.py:Boxes --images DIR --output DIR [flags]")
    assert "where the images are" in text
    assert "--names" not in text


def test_flags_of_keys_leave_beams_alone_and_are_not_in_the_help() -> None:
    beam = beam_parser()
    parser = make_parser("build", beam=beam)
    ours = set(make_parser("build")._option_string_actions) - {"-h", "--help"}
    assert {"--max-pixels", "--seed"} <= ours
    assert not ours & set(beam._option_string_actions)
    assert "--max-pixels" not in parser.format_help()


@pytest.mark.usefixtures("config_file")
def test_a_file_wins_over_a_format_of_its_name() -> None:
    Path("coco").write_text(CONFIG)
    assert parse_build("build coco").config.name == "d"
    Path("coco").unlink()
    assert parse_build(COCO).config.name == "coco"


def test_the_sample() -> None:
    line = "sample shapes --output o --images 12 --seed 7 --workers 2 --width 64 --height 65"
    assert parse_arguments(line.split()) == SampleArguments(
        kind="shapes", output="o", images=12, seed=7, workers=2, width=64, height=65
    )
    assert parse_arguments(
        ["--images", "1", "sample", "--output", "o", "shapes"]
    ) == SampleArguments(
        kind="shapes", output="o", images=1, seed=0, workers=None, width=640, height=480
    )
