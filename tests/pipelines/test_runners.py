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
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.portability.fn_api_runner import fn_runner

from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.runners import check_beam_options, check_runner, make_options
from shardbeam.transforms.commit_dataset import _write_rejects
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset import staging
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
def test_flink_with_one_worker_is_warned_of(
    options: dict[str, object], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_runner(make_options(options))
    assert [record.message for record in caplog.records] == (
        [
            "Flink starts one Python worker on each TaskManager, whatever --parallelism is; "
            "--sdk_worker_parallelism=N starts N of them (docs/runners.md)"
        ]
        if warns
        else []
    )


@pytest.mark.parametrize(
    ("name", "runner"),
    [
        ("SparkRunner", "SparkRunner"),
        ("spark", "SparkRunner"),
        ("apache_beam.runners.portability.spark_runner.SparkRunner", "SparkRunner"),
        ("kafkastreams", "KafkaStreamsRunner"),
    ],
)
def test_runners_that_were_never_tried_are_refused(name: str, runner: str) -> None:
    with pytest.raises(UsageError, match=f"^--runner={runner} is refused: .*FlinkRunner"):
        check_beam_options({"runner": name})


def test_a_refused_runner_is_not_offered() -> None:
    with pytest.raises(UsageError) as raised:
        check_beam_options({"runner": "Nothing"})
    assert "FlinkRunner" in str(raised.value)
    assert "Spark" not in str(raised.value)
    assert check_beam_options({"runner": "my.package.OwnRunner"}) == {
        "runner": "my.package.OwnRunner"
    }


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
        "path: share it by a mount, or write to object storage (docs/runners.md)"
    )
    # No shard was written, and nothing is left of the run.
    assert not list(tmp_path.rglob("*.tfrecord*"))
    assert not (tmp_path / "out").exists()


def test_workers_that_share_the_output_build_it(
    elsewhere: str, shapes: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "worker" / "out").symlink_to(tmp_path / "out")
    done = run(*coco_words(shapes, "/proc/self/cwd/out", elsewhere))
    assert done.exit_code == 0, done.stderr
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
