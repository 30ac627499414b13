"""Versions and the pointer to the latest on `gs://`, with their requests in order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dataset import check_whole, coco_words, run
from tests.support.gcs_server import ProxiedGcs


@pytest.fixture
def words(bucket: str, source: str) -> list[str]:
    latest = f"output.latest={bucket}/out/latest"
    output = f"{bucket}/out/{{version}}-{{fingerprint}}"
    return coco_words(source, output, "--set", latest, "--json")


def build(*words: str) -> dict[str, Any]:
    result = run(*words, exit_code=0)
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


def test_the_pointer_is_written_after_the_dataset(
    gcs: ProxiedGcs, bucket: str, words: list[str]
) -> None:
    summary = build(*words)
    assert gcs.read(f"{bucket}/out/latest") == f"{summary['output']}\n".encode()
    assert check_whole(gcs.read_tree(summary["output"]))
    names = [
        request.name
        for request in gcs.proxy.requests
        if request.kind in ("insert", "rewrite") and not request.name.endswith("/runs/.lease.json")
    ]
    assert names[-2].endswith("/dataset_info.json")
    assert names[-1] == "out/latest"
    # Nothing beside the two, and no request that is not in the summary.
    name = summary["output"].rpartition("/")[2]
    assert {path.partition("/")[0] for path in gcs.names(f"{bucket}/out")} == {name, "latest"}
    assert summary["storage"]["requests"] == gcs.proxy.counts()
    shown = run("show", f"{bucket}/out/latest", "--limit", "1", exit_code=0)
    assert "train, example 1 of 40" in shown.stdout


def test_nothing_to_do(gcs: ProxiedGcs, bucket: str, words: list[str]) -> None:
    first = build(*words)
    before = gcs.read_tree(f"{bucket}/out")
    gcs.proxy.reset()
    summary = build(*words, "--if-changed")
    assert summary["current"]
    assert gcs.read_tree(f"{bucket}/out") == before
    images = [request for request in gcs.proxy.requests if request.name.startswith("in/images/0")]
    assert images == []
    assert gcs.proxy.counts()["insert"] == 0
    assert summary["storage"]["requests"] == gcs.proxy.counts()

    # As after a kill between the two writes.
    gcs.delete(f"{bucket}/out/latest")
    assert build(*words, "--if-changed")["current"]
    assert gcs.read(f"{bucket}/out/latest") == f"{first['output']}\n".encode()

    gcs.write(
        f"{bucket}/in/images/000000000001.jpg", gcs.read(f"{bucket}/in/images/000000000002.jpg")
    )
    second = build(*words, "--if-changed")
    assert not second["current"]
    assert second["output"] != first["output"]
    assert gcs.read(f"{bucket}/out/latest") == f"{second['output']}\n".encode()
    assert check_whole(gcs.read_tree(first["output"]))
