"""The Flex Template: its parameters are the command's, and its launcher spells them as flags."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud.dataflow_v1beta3.types import TemplateMetadata

from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.cli.flags import flags_of
from shardbeam.pipelines.commands.flex_template import command_line, launch, template_metadata
from shardbeam.pipelines.failures import UsageError
from tests.conftest import PROJECT_ROOT

METADATA = json.loads((PROJECT_ROOT / "docker" / "metadata.json").read_bytes())
PARAMETERS: dict[str, dict[str, Any]] = {
    parameter["name"]: parameter for parameter in METADATA["parameters"]
}


def test_the_file_is_up_to_date() -> None:
    # `make template` updates it.
    assert template_metadata() == METADATA


def test_dataflow_reads_it() -> None:
    message = TemplateMetadata.from_json(json.dumps(METADATA))
    assert [parameter.name for parameter in message.parameters] == list(PARAMETERS)
    for parameter in message.parameters:
        assert re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]+", parameter.name)
        assert parameter.label
        assert parameter.help_text
        assert parameter.regexes


def test_every_option_of_the_command_is_a_parameter() -> None:
    options = {name for flags in flags_of(BuildArguments).values() for name in flags}
    only_here = {"wait", "json", "log_format", "verbose"}
    assert only_here < options
    assert set(PARAMETERS) == (options - only_here) | {"config", "format", "sdk_container_image"}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("config", "gs://b/c.yaml", "c.yaml"),
        ("format", "image-folder", "own.py:Own"),
        ("images", "gs://b/images", "/data/images"),
        ("annotations", '["gs://b/1.json", "gs://b/2.json"]', "a.json"),
        ("annotations", "gs://b/1.json", ""),
        ("overwrite", "true", "yes"),
        ("reuse", "gs://b/previous", "/data/previous"),
        ("threads", "12", "0"),
        ("version", "1.0.0", "1"),
        ("fractions", "train=0.8,validation=0.2", "train"),
        ("set", "image.quality=90", "image.quality"),
    ],
)
def test_patterns(name: str, good: str, bad: str) -> None:
    patterns = PARAMETERS[name]["regexes"]
    assert any(re.search(pattern, good) for pattern in patterns)
    assert not any(re.search(pattern, bad) for pattern in patterns)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config=gs://b/c.yaml"], ["build", "gs://b/c.yaml", "--runner=DataflowRunner"]),
        (
            ["--format=coco", "--images=gs://b/i", '--annotations=["gs://b/1", "gs://b/2"]'],
            [
                *("build", "coco", "--runner=DataflowRunner", "--images=gs://b/i"),
                *("--annotations=gs://b/1", "--annotations=gs://b/2"),
            ],
        ),
        (
            ["--if_changed=true", "--overwrite=false", "--config=gs://b/c.yaml"],
            ["build", "gs://b/c.yaml", "--runner=DataflowRunner", "--if-changed"],
        ),
        # Values of any kind, and flags of Beam's.
        (
            [
                "--config=gs://b/c=d.yaml",
                "--set=a=b=c",
                '--set=["a=1", "b=[2]"]',
                "--template_location=gs://b/t",
                "--no_use_public_ips=true",
                "--enable_hot_key_logging=false",
                "--save_heap_dumps_to_gcs_path=gs://b/h",
                "--no_auth",
            ],
            [
                *("build", "gs://b/c=d.yaml", "--runner=DataflowRunner"),
                *("--set=a=b=c", "--set=a=1", "--set=b=[2]", "--template_location=gs://b/t"),
                *("--no_use_public_ips", "--save_heap_dumps_to_gcs_path=gs://b/h", "--no_auth"),
            ],
        ),
    ],
)
def test_command_lines(arguments: Sequence[str], words: Sequence[str]) -> None:
    assert command_line(arguments) == words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected the parameter config or format, and only one of them"),
        (["--config=gs://b/c", "--format=coco"], "and only one of them"),
        (["--format=coco", "--overwrite=yes"], "--overwrite: expected true or false, got 'yes'"),
        (["--format=coco", "--no_auth=1"], "--no_auth: expected true or false, got '1'"),
        (["--format=coco", "--annotations=[1]"], "--annotations: expected a JSON list of strings"),
    ],
)
def test_refusals(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        command_line(arguments)
    assert launch(arguments) == 2
    assert message in capsys.readouterr().err


def test_what_the_image_starts() -> None:
    launcher = PROJECT_ROOT / "docker" / "launcher.py"

    result = subprocess.run(
        [sys.executable, launcher, "--format=coco", "--overwrite=yes"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert result.returncode == 2
    assert result.stderr == ("shardbeam: error: --overwrite: expected true or false, got 'yes'\n")


def test_the_command_understands_it() -> None:
    arguments = parse_arguments(
        command_line(
            [
                "--format=coco",
                "--images=gs://b/images",
                "--annotations=gs://b/a.json",
                "--output=gs://b/out",
                "--overwrite=true",
                "--set=output.num_shards=3",
                "--sdk_container_image=example.com/shardbeam",
                "--max_num_workers=7",
            ]
        )
    )
    assert isinstance(arguments, BuildArguments)
    assert arguments.overwrite
    assert arguments.config.output.num_shards == 3
    assert arguments.beam_options == {
        "runner": "DataflowRunner",
        "sdk_container_image": "example.com/shardbeam",
        "max_num_workers": 7,
    }
