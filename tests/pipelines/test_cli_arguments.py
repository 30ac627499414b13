"""Command lines: their meaning, and the errors of wrong ones."""

from __future__ import annotations

import itertools
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
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.load import FormatError, built_in_formats

COCO = "build coco --images i --annotations a.json --output o"
FOLDERS = "build image-folder --images i --output o"
MISSING = "no such config file, format or ready config"
TESTS = Path(__file__).parent
FORMATS = ", ".join(built_in_formats())
NO_COUNT = "{}: expected a whole number from 1 up, got '0'"
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


def test_nothing_is_on_by_default() -> None:
    arguments = parse_build(COCO)
    assert arguments.threads is None
    assert not arguments.overwrite
    assert not arguments.if_changed
    assert not arguments.json
    assert not arguments.verbose


@pytest.mark.usefixtures("config_file")
@pytest.mark.parametrize(
    "words",
    list(
        itertools.permutations(
            [["build"], ["d.yaml"], ["--runner", "PrismRunner"], ["--parallelism=-1", "--json"]]
        )
    ),
)
def test_flags_stand_anywhere(words: tuple[list[str], ...]) -> None:
    line = list(itertools.chain.from_iterable(words))
    if line.index("d.yaml") < line.index("build"):
        with pytest.raises(UsageError, match=r"^expected a command .* first, got 'd\.yaml'$"):
            parse_arguments(line)
    else:
        arguments = parse_arguments(line)
        assert isinstance(arguments, BuildArguments)
        assert arguments.beam_options == {"runner": "PrismRunner"}
        assert arguments.json


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


@pytest.mark.parametrize("mode", ["multi_processing", "multi_threading"])
def test_modes_of_the_local_runner_that_hang_or_lose_elements_are_refused(mode: str) -> None:
    with pytest.raises(UsageError, match=rf"{mode} is refused: .*--processes=N"):
        parse_build(f"{COCO} --direct_running_mode={mode} --direct_num_workers=2")


def test_no_flag_of_ours_is_beams() -> None:
    beam = beam_parser()
    beams = set(beam._option_string_actions) - {"-h", "--help"}
    assert len(beams) > 100
    ours = {flag_name(name) for flags in flags_of(BuildArguments).values() for name in flags}
    assert not beams & ours


@pytest.mark.parametrize("flag", sorted(REFUSED_FLAGS))
def test_flags_of_beam_that_make_no_sense_are_refused(flag: str) -> None:
    assert flag in beam_parser()._option_string_actions, "Beam has no such flag (any more)"
    for line in (f"{flag} {COCO}", f"{COCO} {flag}", f"{COCO} {flag}=1"):
        with pytest.raises(UsageError, match=rf"^{flag} is refused: it "):
            parse_arguments(shlex.split(line))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # Commands and words.
        (
            "biuld coco",
            f"expected a command ({', '.join(COMMANDS)}), got 'biuld'; did you mean build?",
        ),
        ("--json", f"expected a command ({', '.join(COMMANDS)})"),
        (
            "--name build",
            f"expected a command ({', '.join(COMMANDS)}) first, got ''",
        ),
        ("build", f"build: expected a config file or a format ({FORMATS}), got none"),
        (
            "build my photos coco --images x",
            "build: expected one config file or format, got coco and my photos; quote a path with "
            "spaces in it ('my photos')",
        ),
        (
            "build webdataset --tars a.tar . ..",
            "build: expected one config file or format, got webdataset and . ..; quote a pattern "
            "('*.tar'), and give a flag once for each of several paths",
        ),
        (
            "plan cocoo",
            f"plan: {MISSING}: cocoo; did you mean coco?",
        ),
        (
            "build x.yaml",
            f"build: {MISSING}: x.yaml; the formats are {FORMATS}",
        ),
        (
            "build .",
            "build: . is a folder; `shardbeam init .` looks at what is in it and writes a config",
        ),
        ("build coco", "build coco: missing --images, --annotations, --output"),
        ("build coco --panoptic x", "build coco: missing --images, --output"),
        (
            f"build coco --images {__file__} --annotations {TESTS} --output x",
            f"--images {__file__} is a file, and --annotations {TESTS} is a folder: swap them",
        ),
        # A section of the config has a similar name.
        (f"{COCO} --image a", "unknown flag --image; did you mean --images?"),
        # Flags.
        (f"{COCO} --runnr X", "unknown flag --runnr; did you mean --runner?"),
        (f"{COCO} --runnr=X", "unknown flag --runnr; did you mean --runner?"),
        (f"{COCO} -runner X", "unknown flag -runner; did you mean --runner?"),
        (f"{COCO} --run X", "unknown flag --run; did you mean --runner?"),
        (f"{COCO} --group_by x", "unknown flag --group_by; did you mean --group-by?"),
        (
            f"{COCO} --direct-num-workers 2",
            "unknown flag --direct-num-workers; did you mean --direct_num_workers?",
        ),
        (f"{COCO} --zzzzzz", "unknown flag --zzzzzz"),
        # Names of other tools, of which the nearest flag is none.
        (f"{COCO} --workers 4", "unknown flag --workers; did you mean --processes?"),
        (f"{COCO} --num-workers 4", "unknown flag --num-workers; did you mean --processes?"),
        (
            f"{COCO} --resize 640",
            "unknown flag --resize; did you mean --max-side, or --set "
            "'image.resize={width: 640, height: 640}'?",
        ),
        (f"{COCO} --val-split=0.2", "unknown flag --val-split; did you mean --fractions?"),
        (f"{COCO} --input x", "unknown flag --input; did you mean --images?"),
        (f"{COCO} --rename a=b", "unknown flag --rename; use --set features.rename=VALUE"),
        (
            f"{COCO} --class-map x",
            "unknown flag --class-map; did you mean --set labels.merge=VALUE?",
        ),
        (f"{COCO} --include a", "unknown flag --include; use --set labels.include=VALUE"),
        (f"{COCO} --path a", "unknown flag --path; use --set output.path=VALUE"),
        (f"{COCO} --max-side x", "--max-side: expected int, at least 1, got 'x'"),
        (f"{COCO} --runner", "--runner: expected one argument"),
        (
            f"{COCO} --runner DirektRunner",
            "--runner: unknown runner 'DirektRunner'; did you mean DirectRunner?",
        ),
        (f"{COCO} --direct_num_workers x", "--direct_num_workers: invalid int value: 'x'"),
        (f"{COCO} --threads 0", NO_COUNT.format("--threads")),
        (f"{COCO} --json=1", "--json: ignored explicit argument '1'"),
        (
            f"{COCO} --gcs_custom_audit_entries=x",
            "a flag's value cannot be read: Expecting value: line 1 column 1 (char 0)",
        ),
        # Flags that stand for a config.
        (
            "build coco --images i --output o",
            "--annotations: missing; coco needs annotations or panoptic or semantic_masks",
        ),
        ("plan image-folder --images i", "plan image-folder: missing --output"),
        (f"{COCO} --classes c", "build coco: this format takes no --classes"),
        (
            "build csv --images c --output o",
            "build csv: this format takes no --images; did you mean --image-root?",
        ),
        (
            "build coco --images i --manifest c --output o",
            "build coco: this format takes no --manifest; did you mean --annotations?",
        ),
        (f"{FOLDERS} --annotations c", "build image-folder: this format takes no --annotations"),
        (f"{COCO} --images ''", "--images: expected a path or URI, got ''"),
        (f"{COCO} --fractions a=0.5", "--fractions: expected a sum of 1, got 0.5"),
        (
            f"{COCO} --fractions a=0.5,a=0.5",
            "--fractions: expected split=fraction,... with each split once, got 'a=0.5,a=0.5'",
        ),
        (
            f"{COCO} --fractions a=1 --split b",
            "--split: not together with --fractions, which names the splits",
        ),
        (f"{COCO} --group-by x", "--group-by: only together with fractions"),
        (f"{COCO} --exact", "--exact: only together with fractions"),
        (f"{COCO} --stratify", "--stratify: only together with fractions"),
        (
            f"{COCO} --set image.qualty=3",
            "--set: image.qualty: unknown key; did you mean image.quality?",
        ),
        ("init", "expected `init DIR`, got `init`"),
        ("init a b", "expected `init DIR`, got `init a b`"),
        ("formats coco yolo", "expected `formats [FORMAT]`, got `formats coco yolo`"),
        ("show", "expected `show PATH`, got `show`"),
        # The sample.
        ("sample", "expected `sample shapes`, got `sample`"),
        ("sample squares", "expected `sample shapes`, got `sample squares`"),
        ("sample shapes", "sample shapes: missing --output, --images"),
        (
            "sample shapes --output o --images 3 --seed -1",
            "--seed: expected a whole number from 0 up, got '-1'",
        ),
        (
            "sample shapes --output o --images 3 --width 63",
            "--width: expected a whole number from 64 to 4096, got '63'",
        ),
        ("sample shapes --output o --images 3 --workers 0", NO_COUNT.format("--workers")),
        ("sample shapes --output o --images 0", NO_COUNT.format("--images")),
        ("sample shapes --output o --imagse 3", "unknown flag --imagse; did you mean --images?"),
        ("sample shapes --output o --images 3 --runner X", "unknown flag --runner"),
    ],
)
def test_wrong_command_lines(line: str, message: str) -> None:
    with pytest.raises((UsageError, ConfigError)) as caught:
        parse_arguments(shlex.split(line))
    assert str(caught.value) == message


@pytest.mark.usefixtures("config_file")
@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--images x", "splits.NAME.images"),
        ("--annotations x", "splits.NAME.annotations"),
        ("--classes x", "splits.NAME.classes"),
        ("--split x", "splits"),
    ],
)
def test_with_a_config_file_set_does_what_flags_do_without(flag: str, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_build(f"build d.yaml {flag}")
    assert str(caught.value) == (
        f"{flag.split()[0]} goes with a format ({FORMATS}), not with a config file; "
        f"use --set {key}=..."
    )


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("build mine.py:Boxes --output o", "build mine.py:Boxes: missing --images"),
        ("build mine.py:Boxes --classes c", "unknown flag --classes"),
        (
            "build mine.py:Boxes --images i --labels night --output o",
            "--labels is refused: it is an option of Beam and a key of mine.py:Boxes; set the key "
            "in a config file",
        ),
        ("build mine.py:Boxes --images i --scale x", "--scale: expected float, got 'x'"),
        ("plan mine.py:Bxes", "format 'mine.py:Bxes': mine.py has no 'Bxes'; did you mean 'Boxes'"),
        ("plan no.py:Boxes", "format 'no.py:Boxes': no.py cannot be imported: FileNotFoundError"),
    ],
)
def test_wrong_command_lines_of_ones_own_format(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    with pytest.raises((UsageError, FormatError)) as caught:
        parse_arguments(shlex.split(line))
    assert str(caught.value).startswith(message)


def test_flags_of_keys_leave_beams_alone_and_are_not_in_the_help() -> None:
    beam = beam_parser()
    parser = make_parser("build", beam=beam)
    ours = set(make_parser("build")._option_string_actions) - {"-h", "--help"}
    assert {"--max-pixels", "--max_pixels", "--seed"} <= ours
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
