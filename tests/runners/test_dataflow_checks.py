"""Builds that are refused before anything is staged for Dataflow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from shardbeam.pipelines.runners.dataflow import COSTS, describe_cost
from shardbeam.pipelines.runners.options import own_versions
from tests.conftest import PROJECT_ROOT
from tests.runners.cloud import IMAGE, Cloud
from tests.support.dataset import run

VERSIONS = own_versions()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "Dataflow's workers need the program: give --sdk_container_image=IMAGE, or "),
        (["--project="], "--runner=DataflowRunner: missing --project"),
        (["--region=", "--temp_location="], "missing --region, --temp_location"),
        (["--temp_location=/tmp/x"], "--temp_location: Dataflow writes to gs:// only, got /tmp/x"),
        (["--staging_location=tmp"], "--staging_location: Dataflow writes to gs:// only, got tmp"),
        (["--output", "out"], "output.path: Dataflow writes to gs:// only, got "),
        (["--set", "output.latest=x"], "output.latest: Dataflow writes to gs:// only, got "),
        (["--images", "pictures"], "pictures: a local path, which Dataflow's workers cannot read"),
        (
            ["--reuse", "{built}"],
            "{built}: a local path, which Dataflow's workers cannot read; name a dataset on gs:// ",
        ),
        (["--reuse", "gs://no-such-bucket/x"], "--reuse: no committed dataset of "),
        (["--setup_file=nowhere/setup.py"], "--setup_file: no such file: "),
        (["--temp_location=gs://no-such-bucket/x"], "there is no bucket gs://no-such-bucket"),
        (["--output", "gs://no-such-bucket/x"], "output.path: there is no bucket "),
        (["--region=europe-west1"], "lies in US-CENTRAL1, and the workers in europe-west1: "),
        (
            ["--sdk_container_image=apache/beam_python3.9_sdk:2.50.0"],
            "apache/beam_python3.9_sdk:2.50.0 has Python 3.9 and Beam 2.50.0, and this program "
            f"runs on Python {VERSIONS.python} and Beam {VERSIONS.beam}; they must be the same",
        ),
    ],
)
def test_refusals(flags: Sequence[str], message: str, cloud: Cloud, built: Path) -> None:
    flags = [flag.format(built=built) for flag in flags]
    message = message.format(built=built)
    if not any("sdk_container_image" in flag or "setup_file" in flag for flag in flags) and flags:
        flags = [f"--sdk_container_image={IMAGE}", *flags]
    build, *words = cloud.words(*flags)
    for command in (build, "plan"):
        result = run(command, *words)
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert message in line
    assert cloud.service.job is None
    assert [name for name in cloud.gcs.names(cloud.bucket) if name.startswith("tmp/")] == []


@pytest.mark.parametrize(
    ("path", "flags", "message"),
    [
        (
            "{built}",
            ("--report={bucket}/r",),
            "{built}: a local path, which Dataflow's workers cannot read; copy it to gs://",
        ),
        (
            "{bucket}/x",
            (),
            "needs --report URI, a file for the result that its workers and this machine can reach",
        ),
        ("{bucket}/x", ("--report={built}-r",), "--report: Dataflow writes to gs:// only, got "),
        (
            "{bucket}/x",
            ("--report={bucket}/r", "--template_location={bucket}/t"),
            "--template_location: verify reads the result of a job",
        ),
    ],
)
def test_refusals_of_verify(
    path: str, flags: Sequence[str], message: str, cloud: Cloud, built: Path
) -> None:
    cloud.gcs.write(f"{cloud.bucket}/x/x.tfrecord", b"")
    words = [word.format(built=built, bucket=cloud.bucket) for word in (path, *flags)]
    result = run("verify", *words, *cloud.job_flags, f"--sdk_container_image={IMAGE}")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message.format(built=built) in line
    assert cloud.service.job is None


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A folder that looks like a dataset."""
    folder = tmp_path / "built"
    folder.mkdir()
    for name in ("dataset_info.json", "manifest.json"):
        (folder / name).write_text("{}")
    return folder


def test_a_local_annotation_file(cloud: Cloud, mixed: Path) -> None:
    path = mixed / "annotations" / "instances.json"
    result = run(*cloud.words(f"--sdk_container_image={IMAGE}", "--annotations", str(path)))
    assert result.exit_code == 2
    assert f"{path}: a local path, which Dataflow's workers cannot read" in result.stderr
    assert cloud.service.job is None


def test_a_format_of_ones_own_in_a_file(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from shardbeam.transforms.formats.base import Format, Kind\n"
        "from shardbeam.configs.keys import Location\n"
        "class Own(Format):\n"
        "    images: Location\n"
        "    kinds = frozenset({Kind.CLASSIFICATION})\n"
    )
    config = tmp_path / "own.yaml"
    config.write_text(
        "name: own\n"
        f"splits: {{train: {{format: '{tmp_path}/own.py:Own', images: '{cloud.bucket}/images'}}}}\n"
        f"output: {{path: '{cloud.output}'}}\n"
    )
    flags = [*cloud.job_flags, f"--sdk_container_image={IMAGE}"]
    result = run("build", str(config), *flags)
    assert result.exit_code == 2
    assert (
        f"{tmp_path}/own.py: a local path, which Dataflow's workers cannot read; put the "
        in result.stderr
    )
    assert cloud.service.job is None


def test_a_plan_says_time_and_cost(cloud: Cloud) -> None:
    _, *words = cloud.words(f"--sdk_container_image={IMAGE}", "--json")
    planned = run("plan", *words, exit_code=0)
    assert (
        "Dataflow: up to 4.8 minutes and 0.09 dollars of 2 workers, as computed for 100,000 "
        "images of 135 KB that are not resized, not measured "
        "(docs/guide/runners.md#minutes-and-dollars)"
    ) in json.loads(planned.stdout)["notes"]
    assert cloud.service.job is None


def test_the_costs_are_those_of_the_table() -> None:
    page = (PROJECT_ROOT / "docs" / "guide" / "runners.md").read_text(encoding="utf-8")
    for images, workers, minutes, dollars in COSTS:
        assert f"| {images:,} | {workers} | {minutes} | {dollars} |" in page
    # Long images count for several.
    text = describe_cost(images=100, num_bytes=10**6 * 135_000)
    assert text.startswith("Dataflow: up to 8.3 minutes and 0.62 dollars of 4 workers, ")
    text = describe_cost(images=10**9, num_bytes=0)
    assert text.startswith("Dataflow: more than the 180 minutes and 67.54 dollars of 25 workers, ")


def test_no_wait_is_for_dataflow(cloud: Cloud) -> None:
    result = run(*cloud.words("--runner=DirectRunner", "--no-wait"))
    assert result.exit_code == 2
    assert "--no-wait: only with --runner=DataflowRunner" in result.stderr
