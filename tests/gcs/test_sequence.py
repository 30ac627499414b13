"""`shardbeam.open` on `gs://`: ranged reads, copies, changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shardbeam
from shardbeam.transforms.core.errors import InputError
from tests.support.dataset import Tree, run
from tests.support.gcs_server import ProxiedGcs


@pytest.fixture
def stored(gcs: ProxiedGcs, bucket: str, expected: Tree) -> str:
    """A dataset of five shards in the bucket."""
    gcs.write_tree(f"{bucket}/out", expected)
    gcs.proxy.reset()
    return f"{bucket}/out"


def test_a_request_for_each_example(gcs: ProxiedGcs, stored: str) -> None:
    dataset = shardbeam.open(stored)
    gcs.proxy.reset()
    keys = [item["image/filename"] for item in dataset]
    assert len(keys) == 40
    assert gcs.proxy.counts() == {"get": 40}
    gcs.proxy.reset()
    batch = dataset.__getitems__([39, 0, 7])
    assert [item["image/filename"] for item in batch] == [keys[39], keys[0], keys[7]]
    assert dataset[-1]["image/filename"] == keys[-1]
    assert gcs.proxy.counts() == {"get": 4}
    assert all(request.is_media and request.query["generation"] for request in gcs.proxy.requests)


def test_copies(gcs: ProxiedGcs, stored: str, tmp_path: Path) -> None:
    dataset = shardbeam.open(stored, cache=tmp_path / "cache")
    expected = [item["image/encoded"] for item in shardbeam.open(stored)]
    gcs.proxy.reset()
    assert [item["image/encoded"] for item in dataset] == expected
    copies = [path.read_bytes() for path in (tmp_path / "cache").glob("*/*tfrecord-*")]
    tree = gcs.read_tree(stored)
    assert sorted(copies) == sorted(
        data for name, data in tree.items() if "tfrecord-" in name and "/" not in name
    )
    gcs.proxy.reset()
    again = shardbeam.open(stored, cache=tmp_path / "cache")
    opened = gcs.proxy.counts()
    assert [item["image/encoded"] for item in again] == expected
    assert gcs.proxy.counts() == opened


def test_a_shard_that_was_replaced(gcs: ProxiedGcs, stored: str, tmp_path: Path) -> None:
    """The generation is pinned, so that even the same bytes are another version."""
    dataset = shardbeam.open(stored)
    copied = shardbeam.open(stored, cache=tmp_path / "cache")
    name = min(name for name in gcs.read_tree(stored) if "tfrecord-" in name)
    data = gcs.read(f"{stored}/{name}")
    gcs.write(f"{stored}/{name}", data)
    for changed in (dataset, copied):
        with pytest.raises(InputError, match="the dataset has changed since its index was read"):
            _ = changed[0]
    assert list((tmp_path / "cache").glob("*/*tfrecord-*")) == []
    assert shardbeam.open(stored)[0].keys() == shardbeam.open(stored)[1].keys()


READ = """
import sys, pickle, shardbeam
dataset = pickle.loads(sys.stdin.buffer.read())
print(*(item["image/filename"].decode() for item in dataset))
"""


def test_another_process_reads_a_pickle(stored: str) -> None:
    import pickle

    dataset = shardbeam.open(stored)[5:9]
    done = subprocess.run(
        [sys.executable, "-c", READ], input=pickle.dumps(dataset), capture_output=True, check=True
    )
    keys = [item["image/filename"] for item in dataset]
    assert done.stdout.split() == keys


def test_an_index_in_the_bucket(gcs: ProxiedGcs, stored: str, bucket: str) -> None:
    run("index", stored, "--output", f"{bucket}/indexes", "--idx", exit_code=0)
    assert len(gcs.read_tree(f"{bucket}/indexes")) == 10
    dataset = shardbeam.open(stored, index=f"{bucket}/indexes", where={"min_objects": 3})
    assert len(dataset) == len(shardbeam.open(stored, where={"min_objects": 3}))
    refused = run("index", stored, "--output", f"{stored}/more")
    assert (refused.exit_code, "lies in a dataset" in refused.stderr) == (2, True)
