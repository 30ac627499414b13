"""Beam's options and runners.

Each view of the options is made once, and behaves as Beam's own.
"""

from __future__ import annotations

import copy
import logging
import os
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.portability import flink_runner
from apache_beam.runners.portability.fn_api_runner import fn_runner

from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.runners.options import (
    FLINK_VERSION,
    check_beam_options,
    check_runner,
    make_options,
    make_runner,
)
from shardbeam.transforms.commit_dataset import _write_rejects
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.staging import staging
from tests.conftest import PROJECT_ROOT
from tests.support.dataset import coco_words, read_dataset, run
from tests.support.graph import build_graph


def test_a_graph_is_made_without_parsing_flags_for_each_step(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0
    make = PipelineOptions.__init__

    def count(options: PipelineOptions, flags: list[str], **given: object) -> None:
        nonlocal parsed
        parsed += 1
        make(options, flags, **given)

    monkeypatch.setattr(PipelineOptions, "__init__", count)
    build_graph(*coco_words(shapes, tmp_path))
    assert 0 < parsed < 40


def test_all_views_share_their_values() -> None:
    options = make_options({"direct_num_workers": 3})
    options.view_as(StandardOptions).runner = "FlinkRunner"
    assert options.view_as(DirectOptions).direct_num_workers == 3
    assert options.view_as(StandardOptions).runner == "FlinkRunner"
    assert options.view_as(GoogleCloudOptions).view_as(StandardOptions).runner == "FlinkRunner"
    assert options.get_all_options(drop_default=True) == {
        "direct_num_workers": 3,
        "runner": "FlinkRunner",
    }


def test_a_copy_has_values_of_its_own() -> None:
    options = make_options({"runner": "FlinkRunner"})
    assert options.view_as(StandardOptions).runner == "FlinkRunner"
    copied = copy.deepcopy(options)
    copied.view_as(StandardOptions).runner = "PrismRunner"
    assert copied.view_as(StandardOptions).runner == "PrismRunner"
    assert options.view_as(StandardOptions).runner == "FlinkRunner"


def test_workers_do_not_get_the_account_that_only_submits() -> None:
    options = make_options({"impersonate_service_account": "somebody"})
    assert options.view_as(GoogleCloudOptions).impersonate_service_account == "somebody"
    sent = pickle.loads(pickle.dumps(options))
    assert sent.view_as(GoogleCloudOptions).impersonate_service_account is None


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({"runner": "FlinkRunner", "flink_master": "[local]"}, True),
        ({"runner": "FlinkRunner", "flink_master": "[local]", "parallelism": 16}, True),
        ({"runner": "PortableRunner"}, True),
        # As the command line gives it, and as a program does.
        ({"runner": "FlinkRunner", "sdk_worker_parallelism": "1"}, False),
        ({"runner": "FlinkRunner", "sdk_worker_parallelism": 4}, False),
        ({"runner": "PrismRunner"}, False),
        ({}, False),
    ],
)
def test_a_cluster_with_one_worker_is_warned_of(
    options: dict[str, object], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_runner(make_options(options))
    assert [record.message for record in caplog.records] == (
        [
            "each machine of the cluster starts one Python worker, however many tasks run there; "
            "--sdk_worker_parallelism=N starts N of them (docs/guide/runners.md)"
        ]
        if warns
        else []
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Nothing", "known: DirectRunner, "),
        ("SamzaRunner", "known: DirectRunner, "),
        ("FlikRunner", "did you mean FlinkRunner?"),
        ("prisn", "did you mean PrismRunner?"),
    ],
)
def test_an_unknown_runner_is_refused(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_beam_options({"runner": name})
    assert f"unknown runner {name!r}; {hint}" in str(raised.value)
    assert "Spark" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no.such.Runner", "cannot be loaded: ModuleNotFoundError: No module named 'no'"),
        ("os.path.nothing", "cannot be loaded: AttributeError: "),
        (".Runner", "cannot be loaded: ValueError: "),
        ("collections.Counter", "is not a runner of Beam"),
    ],
)
def test_a_runner_by_its_full_name_is_loaded_or_refused(name: str, problem: str) -> None:
    assert check_beam_options({"runner": name}) == {"runner": name}
    with pytest.raises(UsageError, match=f"^--runner={name} {problem}"):
        make_runner(make_options({"runner": name}))


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ({"runner": "flink"}, FLINK_VERSION),
        ({"runner": "FlinkRunner", "flink_master": "[local]"}, FLINK_VERSION),
        ({"runner": f"{flink_runner.__name__}.FlinkRunner"}, FLINK_VERSION),
        ({"runner": "FlinkRunner", "flink_version": "2.0"}, "2.0"),
        ({"runner": "FlinkRunner", "flink_master": "flink.example.com:8081"}, None),
        ({"runner": "PrismRunner"}, None),
    ],
)
def test_flink_on_one_machine_is_the_tested_one(
    options: dict[str, object], version: str | None
) -> None:
    assert check_beam_options(options).get("flink_version") == version


def test_the_tested_flink_has_a_job_server() -> None:
    assert FLINK_VERSION in FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    jars = (PROJECT_ROOT / "tests" / "runners" / "flink-pom.xml").read_text()
    assert f"<artifactId>beam-runners-flink-{FLINK_VERSION}</artifactId>" in jars


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({"num_workers": 4}, True),
        ({"num_workers": 4, "runner": "direct"}, True),
        ({"num_workers": 4, "runner": "DataflowRunner"}, False),
        ({"runner": "DirectRunner"}, False),
    ],
)
def test_workers_of_dataflow_are_no_processes_of_this_machine(
    options: dict[str, object], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    check_beam_options(options)

    assert ("--processes=N" in caplog.text) == warns


class OtherMachineRunner(fn_runner.FnApiRunner):
    """Runs a pipeline in another folder, so that `/proc/self/cwd` is another folder for workers."""

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:  # noqa: ANN401  # As Beam has it.
        here = os.getcwd()
        os.chdir("worker")
        try:
            return super().run_pipeline(pipeline, options)
        finally:
            os.chdir(here)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The flag of a runner whose workers are in the folder `worker`."""
    if not os.path.isdir("/proc/self/cwd"):
        pytest.skip("only Linux has /proc/self/cwd")
    (tmp_path / "worker").mkdir()
    monkeypatch.setattr(staging, "_MARK_WAIT_S", 0)
    monkeypatch.chdir(tmp_path)
    return f"--runner={__name__}.{OtherMachineRunner.__name__}"


def test_a_worker_that_does_not_see_the_output_ends_the_build(
    elsewhere: str, shapes: Path, tmp_path: Path
) -> None:
    done = run(*coco_words(shapes, "/proc/self/cwd/out", elsewhere))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"shardbeam: error: /proc/self/cwd/out: the worker on host {socket.gethostname()} does not "
        "see what this run has written there; every machine must reach the same folder under this "
        "path: share it by a mount, or write to object storage (docs/guide/runners.md)"
    )
    # No shard was written, and nothing is left of the run.
    assert not list(tmp_path.rglob("*.tfrecord*"))
    assert not (tmp_path / "out").exists()


def test_workers_that_share_the_output_build_it(
    elsewhere: str, shapes: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "worker" / "out").symlink_to(tmp_path / "out")
    done = run(*coco_words(shapes, "/proc/self/cwd/out", elsewhere), exit_code=0)
    assert len(read_dataset(tmp_path / "out")) > 5
    # They do not share the folder of this file.
    done = run("verify", "out", elsewhere, "--report", "/proc/self/cwd/report.json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "shardbeam: error: --report: /proc/self/cwd/report.json: a worker has written it, but this "
        "machine does not see it; name a file in a folder that all machines share, or in object "
        "storage"
    )


def test_rejects_are_not_written_into_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_MARK_WAIT_S", 0)
    marked = staging.Staging(output=str(tmp_path), plan="p", run_id="r", mark=staging.LAUNCHED)
    with pytest.raises(InputError, match="does not see what this run has written there"):
        _write_rejects((("train", "rejects/train.jsonl"), []), staging=marked)
    assert not list(tmp_path.iterdir())
