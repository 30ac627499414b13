"""The lease on `gs://`: each change on condition of the generation."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from shardbeam.pipelines import execute
from shardbeam.pipelines.failures import RunError
from shardbeam.pipelines.runners.options import LocalRunner
from shardbeam.transforms.staging.object_lease import LeaseRecord, read_lease
from tests.gcs.conftest import SETTINGS
from tests.support import gcs_memory as memory
from tests.support.dataset import Tree, coco_words, dataset_files, read_tree, run
from tests.support.gcs_proxy import Request
from tests.support.gcs_server import ProxiedGcs


@pytest.fixture
def words(bucket: str, source: str) -> list[str]:
    return coco_words(source, f"{bucket}/out")


def write_foreign(gcs: ProxiedGcs, uri: str, *, year: int = 2100) -> bytes:
    """Writes the lease of a run on another machine, which expires in that year."""
    data = json.dumps(
        {
            **{"holder": "x", "plan": "p", "output": "o", "runner": "LocalRunner"},
            **{"host": "elsewhere", "user": "ann", "pid": 7},
            **dict.fromkeys(("acquired_at", "renewed_at"), "2000-01-01T00:00:00Z"),
            "expires_at": f"{year}-01-01T00:00:00Z",
        }
    ).encode()
    gcs.write(uri, data)
    return data


def is_lease(request: Request) -> bool:
    return request.name == "out/runs/.lease.json"


def read_record(uri: str) -> LeaseRecord:
    record, _ = read_lease(uri)
    assert record is not None
    return record


def test_what_a_lease_asks_for(gcs: ProxiedGcs, bucket: str, words: list[str]) -> None:
    for more in ((), ("--overwrite",)):
        gcs.proxy.reset()
        result = run(*words, *more, "--json", exit_code=0)
        requests = [request for request in gcs.proxy.requests if is_lease(request)]
        # It is looked at and taken; looked at before the shard, the gate, the moves,
        # the finish and, twice, the clearing, for its generation and its content; and released.
        first = ["get"] if not more else ["get", "get"]
        looks = ["get"] * 12
        assert [request.kind for request in requests] == [*first, "insert", *looks, "insert"]
        taken, released = (request for request in requests if request.kind == "insert")
        assert (taken.query["ifGenerationMatch"] == "0") == (not more)
        assert released.query["ifGenerationMatch"] not in ("0", taken.query["ifGenerationMatch"])
        assert json.loads(result.stdout)["storage"]["requests"] == gcs.proxy.counts()
        assert read_record(f"{bucket}/out/runs/.lease.json").released
        # First of all that is written, and last.
        writes = [request for request in gcs.proxy.requests if request.kind != "list"]
        writes = [request for request in writes if request.kind != "get"]
        assert is_lease(writes[0])
        assert is_lease(writes[-1])


def test_a_second_run_asks_for_the_lease_only(
    gcs: ProxiedGcs, bucket: str, words: list[str]
) -> None:
    data = write_foreign(gcs, f"{bucket}/out/runs/.lease.json")
    gcs.proxy.reset()
    result = run(*words, "--json", exit_code=4)
    summary = json.loads(result.stdout)
    assert summary["exit_code"] == 4
    assert "another run is writing there: LocalRunner, process 7 of ann@elsewhere" in result.stderr
    lease = [request.kind for request in gcs.proxy.requests if is_lease(request)]
    others = [request.name for request in gcs.proxy.requests if not is_lease(request)]
    assert lease == ["get", "get"]
    # The plan reads the annotations; nothing in the output is requested.
    assert set(others) == {"in/annotations/instances.json"}
    assert gcs.read_tree(f"{bucket}/out") == {"runs/.lease.json": data}


def test_a_build_that_fails_at_once_leaves_nothing(
    gcs: ProxiedGcs, bucket: str, words: list[str]
) -> None:
    result = run(*words, "--set", "labels.include=[sqare]")
    assert (result.exit_code, "no class is named 'sqare'" in result.stderr) == (1, True)
    assert gcs.names(f"{bucket}/out") == []


def test_a_lease_that_is_lost_is_noticed_at_the_gate(
    gcs: ProxiedGcs, bucket: str, words: list[str]
) -> None:
    uri = f"{bucket}/out/runs/.lease.json"
    seen = 0

    def take(request: Request) -> None:
        nonlocal seen
        if request.name.endswith("totals.json") and not seen:
            seen += 1
            write_foreign(gcs, uri)

    gcs.proxy.decide = take
    result = run(*words, exit_code=4)
    assert f"{uri}: this run has lost its lease on the output and stops" in result.stderr
    assert dataset_files(gcs.read_tree(f"{bucket}/out")) == {}
    assert read_record(uri).host == "elsewhere"


class FlinkRunner(LocalRunner):
    """A local runner that Shardbeam treats as a cluster."""


@pytest.mark.parametrize(
    ("error", "exit_code", "released"),
    [
        (None, 0, True),
        (RuntimeError("Pipeline job-1 failed in state FAILED: out of slots"), 1, True),
        (RunError("the connection to the job server broke"), 1, False),
    ],
    ids=["committed", "failed", "not known"],
)
def test_a_cluster_that_may_go_on_holds_the_lease_until_it_expires(
    error: Exception | None,
    exit_code: int,
    released: bool,
    bucket: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        assert error is not None
        raise error

    monkeypatch.setattr(execute, "make_runner", lambda options: FlinkRunner(options=options))
    if error is not None:
        monkeypatch.setattr(execute.Build, "_run_to_end", fail)
    result = run(*words)
    assert result.exit_code == exit_code, result
    record, _ = read_lease(f"{bucket}/out/runs/.lease.json")
    # A run that has written nothing takes its lease away.
    assert (record is None or record.released) == released
    assert record is None or record.runner == "FlinkRunner"
    assert run(*words, "--overwrite").exit_code == (4 if not released else 0 if not error else 1)


def test_denied_writing_is_told_before_any_work(
    gcs: ProxiedGcs, bucket: str, words: list[str]
) -> None:
    gcs.proxy.decide = lambda request: "403" if request.kind == "insert" else None
    result = run(*words, exit_code=1)
    assert "storage.objects.create and storage.objects.delete is needed" in result.stderr
    assert not [request for request in gcs.proxy.requests if "in/images" in request.name]


def test_a_storage_without_preconditions_says_so_once_and_builds(
    shapes: Path, expected: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    memory.clear()
    root = "folders://host"
    for path, data in read_tree(shapes).items():
        memory.write(f"{root}/in/{path}", data)
    with caplog.at_level(logging.WARNING, logger="shardbeam"):
        result = run(*coco_words(f"{root}/in", f"{root}/out", *SETTINGS))
    assert result.exit_code == 0, result.stderr
    assert [
        record.getMessage()
        for record in caplog.records
        if record.name == "shardbeam.pipelines.output_folder"
    ] == [f"{root}/out: this storage keeps no lease; let only one run at a time write there"]
    written = memory.read_tree(root)
    assert not [path for path in written if "lease" in path or ".staging" in path]
    assert dataset_files(memory.read_tree(f"{root}/out")) == expected
