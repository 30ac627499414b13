"""Builds from and to `gs://` give the same dataset; the tests count their requests."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from shardbeam.transforms.storage import object_listing
from shardbeam.transforms.storage.base import ListingPart
from shardbeam.transforms.storage.gcs import storage as gcs_storage
from shardbeam.transforms.storage.gcs.storage import GcsStorage
from tests.gcs.conftest import SETTINGS, SHARDS
from tests.support.dataset import Tree, coco_words, read_dataset, run
from tests.support.gcs_server import ProxiedGcs

IMAGES = 40


def test_from_gcs_to_gcs(gcs: ProxiedGcs, bucket: str, source: str, expected: Tree) -> None:
    result = run(*coco_words(source, f"{bucket}/out/1.0.0", *SETTINGS, "--json"), exit_code=0)
    assert gcs.read_dataset(f"{bucket}/out/1.0.0") == expected

    requests = gcs.proxy.requests
    # Each image is read in one request, with no other request about it.
    images = Counter(request.name for request in requests if request.name.startswith("in/images"))
    assert len(images) == IMAGES
    assert set(images.values()) == {1}
    assert all(
        request.is_media and request.query["generation"]
        for request in requests
        if request.name in images
    )
    pages = [request for request in requests if request.query.get("prefix") == "in/images/"]
    assert len(pages) == 1
    listings = [request for request in requests if request.kind == "list"]
    assert all("fields" in request.query for request in listings)
    # Shard and index are moved, each by one request that names the generation.
    rewrites = [request for request in requests if request.kind == "rewrite"]
    assert len([request for request in rewrites if ".tfrecord-" in request.path]) == 2 * SHARDS
    assert all(request.query["sourceGeneration"] for request in rewrites)
    assert all(request.query["ifGenerationMatch"] == "0" for request in rewrites)
    # `dataset_info.json` comes last; then the lease is released.
    assert len(rewrites) == 2 * SHARDS + 1
    assert rewrites[-1].path.endswith("/o/out/1.0.0/dataset_info.json")
    *_, lease = [request for request in requests if request.kind == "insert"]
    assert lease.name == "out/1.0.0/runs/.lease.json"
    # And no request that is not in the summary.
    summary = json.loads(result.stdout)["storage"]
    assert summary["requests"] == gcs.proxy.counts()


@pytest.mark.parametrize(
    "flags",
    [
        ("--direct_num_workers=2",),
        ("--processes=3",),
    ],
    ids=["workers", "processes"],
)
def test_two_workers(
    flags: tuple[str, ...], gcs: ProxiedGcs, bucket: str, source: str, expected: Tree
) -> None:
    result = run(*coco_words(source, f"{bucket}/out", *SETTINGS, *flags, "--json"), exit_code=0)
    assert "has ended" not in result.stderr
    assert gcs.read_dataset(f"{bucket}/out") == expected
    assert json.loads(result.stdout)["storage"]["requests"] == gcs.proxy.counts()


def test_a_long_listing_is_left_to_other_workers(
    gcs: ProxiedGcs,
    source: str,
    expected: Tree,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gcs_storage, "PAGE_SIZE", 4)
    monkeypatch.setattr(object_listing, "_FIRST_PAGES", 2)
    listed = list(GcsStorage().begin_listing(source))
    parts = [each for each in listed if isinstance(each, ListingPart)]
    assert parts
    gcs.proxy.reset()
    result = run(*coco_words(source, tmp_path / "out", *SETTINGS, "--json"), exit_code=0)
    assert read_dataset(tmp_path / "out") == expected
    assert 10 < gcs.proxy.counts()["list"] <= 30
    assert json.loads(result.stdout)["storage"]["requests"] == gcs.proxy.counts()
