"""Words that help: the nearest names, and what other tools' words are called here."""

from __future__ import annotations

import functools
import re
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.hints.nearest import edit_distance, nearest_name
from shardbeam.configs.hints.other_tools import _TABLE
from shardbeam.configs.keys import key_paths
from shardbeam.configs.load import ConfigError, Override, make_config
from shardbeam.configs.schema import Config
from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.commands import COMMANDS
from shardbeam.pipelines.cli.flags import make_parser
from shardbeam.pipelines.failures import UsageError
from shardbeam.transforms.formats.base import built_in_formats, find_format
from shardbeam.transforms.formats.table.csv import CsvFormat
from tests.support.screens import check_screen

COCO = {"format": "coco", "images": "i", "annotations": ["a.json"]}
CONFIG: dict[str, Any] = {
    "name": "d",
    "splits": {"train": COCO},
    "output": {"path": "o"},
}
BUILD = "build coco --images i --annotations a.json --output o"

# {a mistyped flag of a build: the flag}
MISTYPED_FLAGS = {
    "--nmae": "--name",
    "--ouput": "--output",
    "--outptu": "--output",
    "--imags": "--images",
    "--image": "--images",
    "--annotaions": "--annotations",
    "--max_file": "--max-file-mb",
    "--max-flie-mb": "--max-file-mb",
    "--min_side": "--min-side-px",
    "--min-area": "--min-area-px",
    "--shard-size": "--shard-size-mb",
    "--num_shard": "--num-shards",
    "--over-write": "--overwrite",
    "--overwritte": "--overwrite",
    "--fractoins": "--fractions",
    "--stratified": "--stratify",
    "--sead": "--seed",
    "--ruuner": "--runner",
    "--proejct": "--project",
    "--temp-location": "--temp_location",
    "--job-name": "--job_name",
    "--service-account": "--service_account_email",
    "--direct-num-workers": "--direct_num_workers",
    "--process": "--processes",
    "--memroy": "--memory",
    "--readahead": "--read-ahead",
    "--reused": "--reuse",
    "--ifchanged": "--if-changed",
    "--logformat": "--log-format",
    "--limt": "--limit",
    "--licence": "--license",
    "--max-crowd": "--max-crowds",
    "--crop-hash": "--crop-hashes",
    "--boxformat": "--box-format",
    "--image-col": "--image-column",
    "--classname": "--class-name",
    "--slpit": "--split",
    "--panoptic-mask": "--panoptic-masks",
    "--qualty": "--quality",
    "--orient": "--orientation",
    "--wrong-ext": "--wrong-extension",
    "--contaner": "--container",
    "--container-type": "--container",
    "--group": "--group-by",
    "--excludes": "--exclude",
    "--filename": "--file-name",
    "--objectslost": "--objects-lost",
    "--example": "--example-per",
    "--output-dir": "--output",
    "--image-dir": "--images",
    "--root-dir": "--root",
    "--max-size": "--max-side",
    "--no-wiat": "--no-wait",
}
# {a mistyped key: the key}
MISTYPED_KEYS = {
    "nmae": "name",
    "lable": "labels",
    "featuers": "features",
    "groupby": "group_by",
    "max_side": "image.max_side",
    "labels.min_side": "labels.min_side_px",
    "labels.max_side": "image.max_side",
    "image.max_file": "image.max_file_mb",
    "image.maxside": "image.max_side",
    "output.shard_size": "output.shard_size_mb",
    "output.pth": "output.path",
    "rejects.ratio": "rejects.max_ratio",
    "expect.min_image": "expect.min_images",
    "splits.train.image": "splits.train.images",
    "splits.train.box_fromat": "splits.train.box_format",
}


@functools.cache
def _distance(one: str, two: str) -> int:
    """The distance by its definition."""
    if not one or not two:
        return len(one) + len(two)
    found = min(
        _distance(one[1:], two) + 1,
        _distance(one, two[1:]) + 1,
        _distance(one[1:], two[1:]) + (one[0] != two[0]),
    )
    if len(one) > 1 and len(two) > 1 and one[:2] == two[1::-1]:
        found = min(found, _distance(one[2:], two[2:]) + 1)
    return found


@given(st.text("abc", max_size=7), st.text("abc", max_size=7), st.integers(0, 7))
def test_the_distance_is_that_of_its_definition(one: str, two: str, most: int) -> None:
    expected = _distance(one, two)
    assert edit_distance(one, two, most=most) == (expected if expected <= most else None)


@pytest.mark.parametrize(
    ("name", "known", "nearest"),
    [
        ("nmae", ["name", "near"], "name"),
        ("Dog", ["dog", "dogs"], "dog"),
        ("traffic", ["traffic_light", "train"], "traffic_light"),
        ("light", ["traffic_light", "train"], "traffic_light"),
        ("val", ["validation", "train"], "validation"),
        ("stuff", ["shuffle"], None),
        # In the middle of a word.
        ("lang", ["slangy_words"], None),
        ("force", ["source_id"], None),
        ("va", ["validation"], None),
        ("id", ["first_id"], "first_id"),
        ("x", ["y"], None),
        ("", ["y", "train"], None),
        ("b", ["ab", "ba"], "ab"),
    ],
)
def test_nearest_names(name: str, known: list[str], nearest: str | None) -> None:
    assert nearest_name(name, known) == nearest
    assert nearest_name(name, reversed(known)) == nearest


@pytest.mark.parametrize(("flag", "meant"), MISTYPED_FLAGS.items())
def test_mistyped_flags_name_the_right_one(flag: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_arguments(shlex.split(f"{BUILD} {flag}"))
    assert str(caught.value) == f"unknown flag {flag}; did you mean {meant}?"


@pytest.mark.parametrize(("key", "meant"), MISTYPED_KEYS.items())
def test_mistyped_keys_name_the_right_one(key: str, meant: str) -> None:
    override = Override(tuple(key.split(".")), 1)
    with pytest.raises(ConfigError) as caught:
        make_config(CONFIG, overrides=[override], origin="", find_format=find_format)
    here = " here" if meant.rpartition(".")[2] == key.rpartition(".")[2] else ""
    assert str(caught.value) == f"--set: {key}: unknown key{here}; did you mean {meant}?"


def test_each_word_of_other_tools_is_in_the_table_once() -> None:
    words = [word for words, _ in _TABLE for word in words.split()]
    assert sorted(words) == sorted(set(words))
    assert all(word == word.lower() and "_" not in word for word in words)


def test_the_table_names_flags_and_keys_that_exist() -> None:
    flags = {flag for name in COMMANDS for flag in make_parser(name)._option_string_actions}
    flags |= {"--runner", "--project", "--region"}
    keys = {".".join(path) for path, _ in key_paths(Config)}
    keys |= {name for kind in built_in_formats().values() for name in kind.__struct_fields__}
    for words, meaning in _TABLE:
        named = [*meaning.flags, meaning.note, meaning.build]
        for flag in re.findall(r"--[a-z][a-z-]*", " ".join(named)):
            assert flag in flags, words
        for key in re.findall(r"[a-z_.]+", re.sub(r": \w+|\{.*?\}| or ", " ", meaning.key)):
            assert key in keys, words
        for command in re.findall(r"`shardbeam ([a-z]+)", " ".join(named)):
            assert command in COMMANDS


# What the flags of other tools are in a build, and in other commands.
OTHER_COMMANDS = (
    "convert a --container webdataset --output o --format x",
    "convert a --container webdataset --output o --dry-run",
    "convert a --container webdataset --output o --jobs 3",
    "init a --force",
    "init a --type coco",
    "init a --out x",
    "export a --format coco --output o --force",
    "export a --format coco --output o --type coco",
    "show a -n 3",
    "show a --idx 3",
    "show a --gpu",
    "report a --out x",
    "report a --samples 3",
    "verify a --deep",
    "verify a --fix",
    "diff a b --force",
    "sample shapes --output o --images 3 --jobs 3",
)
KEYS: tuple[dict[str, Any], ...] = (
    {"format": "coco"},
    {"images": "x"},
    {"labels": {"drop": ["cat"]}},
    {"labels": {"names": ["cat"]}},
    {"image": {"width": 640}},
    {"image": {"letterbox": True}},
    {"splits": {"train": 0.8}},
    {"splits": {"train": "80%"}},
    {"splits": {"train": 80}},
    {"splits": {"train": "photos"}},
    {"train": 0.8},
    {"train": "80%"},
    {"train": COCO},
    {"train": "images/train"},
    {"fractions": {"train": 80}},
    {"fractions": {"train": "80%"}},
    {"rejects": {"max_ratio": 5}},
    {"rejects": 0.05},
    {"max_rejects": 5},
    {"output": "DIR"},
    {"output": {"dir": "DIR"}},
    {"output": {"format": "webdataset"}},
    {"splits": {"train": {**COCO, "path": "x"}}},
    {"splits": {"train": {"format": "voc", "root": "x", "path": "x"}}},
    {"drop": ["cat"]},
    {"dedup": True},
    {"shuffle": True},
    {"batch_size": 8},
    {"workers": 4},
    {"overwrite": True},
    {"gpu": True},
    {"compression": "gzip"},
)


def test_words_of_other_tools() -> None:
    shown = ""
    lines = [f"{BUILD} --{word}" for words, _ in _TABLE for word in words.split()]
    for line in [*(line for line in lines if "." not in line), *OTHER_COMMANDS]:
        try:
            parse_arguments(shlex.split(line))
        except UsageError as error:
            if "unknown flag" in str(error):
                shown += f"{line.replace(BUILD, 'build')}\n    {error}\n"
    for changes in KEYS:
        with pytest.raises(ConfigError) as caught:
            make_config({**CONFIG, **changes}, origin="d.yaml", find_format=find_format)
        shown += f"{changes}\n    {caught.value}\n"
    check_screen("words_of_other_tools", shown)


@pytest.mark.parametrize("line", ["--image_root x --read_ahead 3", "--image-root x --read-ahead=3"])
def test_flags_have_both_spellings(line: str) -> None:
    arguments: Any = parse_arguments(shlex.split(f"build csv --manifest a --output o {line}"))
    source = arguments.config.source
    assert isinstance(source, CsvFormat)
    assert (source.image_root, arguments.read_ahead) == (["x"], 3)


def test_a_flag_in_both_spellings_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        parse_arguments(shlex.split(f"{BUILD} --max-side 3 --max_side=4"))
    assert str(caught.value) == "--max-side: given twice, as --max-side and as --max_side"


def test_flags_of_beam_are_not_taken_for_ours() -> None:
    arguments: Any = parse_arguments(shlex.split(f"{BUILD} --num_workers 3 --job_name=x"))
    assert arguments.beam_options["num_workers"] == 3
    with pytest.raises(UsageError, match="unknown flag --num-wokers; did you mean --num_workers"):
        parse_arguments(shlex.split(f"{BUILD} --num-wokers 3"))


def test_keys_have_both_spellings() -> None:
    source = {"format": "csv", "manifest": ["a"], "image-root": "x", "columns": {"a-b": "ignore"}}
    raw = {
        **CONFIG,
        "splits": {"train": source},
        "image": {"max-side": 3},
        "labels": {"merge": {"my-cat": ["a-b", "a_b"], "my_cat": ["c"]}},
    }
    overrides = [
        "image.max_side=4",
        "splits.train.image_root=y",
        "splits.train.columns.a_b=ignore",
        "labels.merge.my-cat=[d]",
        "output.num-shards=2",
    ]
    config = make_config(raw, overrides=overrides, origin="", find_format=find_format)
    assert isinstance(config.splits, dict)
    train = config.splits["train"]
    assert isinstance(train, CsvFormat)
    assert (config.image.max_side, train.image_root, config.output.num_shards) == (4, ["y"], 2)
    # Names of columns and classes stay as they are.
    assert train.columns == {"a-b": "ignore", "a_b": "ignore"}
    assert config.labels.merge == {"my-cat": ["d"], "my_cat": ["c"]}


def test_a_key_in_both_spellings_is_refused() -> None:
    raw = {**CONFIG, "image": {"max-side": 3, "max_side": 4}}
    with pytest.raises(ConfigError) as caught:
        make_config(raw, origin="d.yaml", find_format=find_format)
    assert str(caught.value) == (
        "d.yaml: image.max_side: given twice, as max_side and as max-side; take one of them"
    )
