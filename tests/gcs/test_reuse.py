"""Shards of the previous version are copied on the server; the tests count the requests."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.gcs.storage import GcsStorage
from tests.gcs.conftest import SETTINGS, SHARDS
from tests.support import gcs_memory as memory
from tests.support.dataset import Run, Tree, coco_words, dataset_files, read_dataset, run
from tests.support.gcs_proxy import Request
from tests.support.gcs_server import ProxiedGcs

IMAGES = 40


def words(shapes: Path | str, output: Path | str, *more: str) -> list[str]:
    return coco_words(shapes, output, *SETTINGS, "--json", *more)


def reuse_of(result: Run) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    reuse: dict[str, Any] = json.loads(result.stdout)["reuse"]
    return reuse


@pytest.fixture
def first(gcs: ProxiedGcs, bucket: str, source: str) -> str:
    """The first version, of images in the bucket."""
    assert run(*words(source, f"{bucket}/v1")).exit_code == 0
    gcs.proxy.reset()
    return f"{bucket}/v1"


def copies(gcs: ProxiedGcs) -> list[Request]:
    """The requests that copy out of the previous version."""
    rewrites = [request for request in gcs.proxy.requests if request.kind == "rewrite"]
    return [request for request in rewrites if "/o/v1/" in request.path.partition("/rewriteTo")[0]]


def images_read(gcs: ProxiedGcs) -> Counter[str]:
    names = [request.name for request in gcs.proxy.requests if request.is_media]
    return Counter(name for name in names if name.startswith("in/images"))


@pytest.mark.slow
def test_everything_is_copied_on_the_server(
    gcs: ProxiedGcs, bucket: str, first: str, expected: Tree
) -> None:
    result = run(*words(f"{bucket}/in", f"{bucket}/v2", "--reuse", first))
    reuse = reuse_of(result)
    assert (reuse["copied_shards"], reuse["unread_images"]) == (SHARDS, IMAGES)
    assert gcs.read_dataset(f"{bucket}/v2") == expected
    assert images_read(gcs) == {}
    # Shard and index each by one request, and with no other about them.
    assert len(copies(gcs)) == 2 * SHARDS
    about = [request.name for request in gcs.proxy.requests if request.name.startswith("v1/coco-")]
    assert [name for name in about if "/rewriteTo" not in name] == []
    records = [request for request in gcs.proxy.requests if "v1/runs/.shards" in request.name]
    assert [request.kind for request in records] == ["get"] * SHARDS
    # Nothing is sent but what is about the dataset.
    summary = json.loads(result.stdout)["storage"]
    assert summary["requests"] == gcs.proxy.counts()
    assert "upload" not in summary["requests"]
    assert summary["bytes_sent"] < 0.5 * sum(map(len, expected.values()))


def test_only_images_of_the_changed_shard_are_read(
    gcs: ProxiedGcs, bucket: str, first: str, shapes: Path, tmp_path: Path
) -> None:
    name = "images/000000000010.jpg"
    gcs.write(f"{bucket}/in/{name}", (shapes / "images" / "000000000011.jpg").read_bytes())
    result = run(*words(f"{bucket}/in", f"{bucket}/v2", "--reuse", first))
    reuse = reuse_of(result)
    assert reuse["copied_shards"] == SHARDS - 1
    read = images_read(gcs)
    assert f"in/{name}" in read
    assert set(read.values()) == {1}
    assert len(read) == IMAGES - reuse["unread_images"] < IMAGES
    assert len(copies(gcs)) == 2 * (SHARDS - 1)
    assert json.loads(result.stdout)["storage"]["requests"] == gcs.proxy.counts()
    assert run(*words(f"{bucket}/in", tmp_path / "fresh")).exit_code == 0
    assert gcs.read_dataset(f"{bucket}/v2") == read_dataset(tmp_path / "fresh")


def test_from_another_bucket(gcs: ProxiedGcs, bucket: str, first: str, expected: Tree) -> None:
    other = gcs.make_bucket(f"{bucket.removeprefix('gs://')}-other")
    result = run(*words(f"{bucket}/in", f"{other}/v2", "--reuse", first))
    assert reuse_of(result)["copied_shards"] == SHARDS
    assert len(copies(gcs)) == 2 * SHARDS
    assert gcs.read_dataset(f"{other}/v2") == expected


def test_a_pointer_and_the_output_itself(
    gcs: ProxiedGcs, bucket: str, first: str, expected: Tree
) -> None:
    gcs.write(f"{bucket}/latest", f"{first}\n".encode())
    flags = ("--overwrite", "--reuse", f"{bucket}/latest")
    assert reuse_of(run(*words(f"{bucket}/in", first, *flags)))["copied_shards"] == SHARDS
    assert gcs.read_dataset(first) == expected
    assert len(gcs.names(f"{first}/runs/.shards")) == SHARDS
    assert images_read(gcs) == {}


def test_what_is_not_there_is_one_line(bucket: str, source: str) -> None:
    for previous in (f"{bucket}/none", "gs://no-such-bucket-at-all/x"):
        result = run(*words(source, f"{bucket}/v2", "--reuse", previous), exit_code=2)
        (line,) = result.stderr.splitlines()
        assert f" --reuse: no committed dataset of Shardbeam's in {previous}; name " in line


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("replaced", "changed after the commit: another size or checksum"),
        ("gone", "is gone"),
        pytest.param(
            "denied", "access denied, storage.objects.create", marks=pytest.mark.slow, id="denied"
        ),
    ],
)
def test_what_cannot_be_copied_is_written_anew(
    damage: str,
    problem: str,
    gcs: ProxiedGcs,
    bucket: str,
    first: str,
    expected: Tree,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shard = f"coco-train.tfrecord-00002-of-{SHARDS:05}"
    if damage == "replaced":
        data = gcs.read(f"{first}/{shard}")
        gcs.write(f"{first}/{shard}", data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "gone":
        gcs.delete(f"{first}/{shard}")
    else:
        gcs.proxy.decide = lambda request: (
            "403" if request.kind == "rewrite" and f"/o/v1/{shard}" in request.path else None
        )
    result = run(*words(f"{bucket}/in", f"{bucket}/v2", "--reuse", first))
    reuse = reuse_of(result)
    assert (reuse["copied_shards"], reuse["damaged_shards"]) == (SHARDS - 1, 1)
    (warning,) = caplog.messages
    assert problem in warning
    assert len(images_read(gcs)) == IMAGES - reuse["unread_images"] > 0
    assert gcs.read_dataset(f"{bucket}/v2") == expected


def test_a_copy_in_several_requests(
    gcs: ProxiedGcs, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server has it between places: it gives a token to go on with."""
    gcs.write(f"{bucket}/a", b"content")
    from google.cloud.storage import Blob

    rewrite = Blob.rewrite
    tokens: list[str | None] = []

    def rewrite_in_parts(blob: Blob, source: Blob, **options: Any) -> Any:  # noqa: ANN401
        tokens.append(options.pop("token"))
        if len(tokens) < 3:
            return f"token {len(tokens)}", 1, 7
        return rewrite(blob, source, token=None, **options)

    monkeypatch.setattr(Blob, "rewrite", rewrite_in_parts)
    copy = GcsStorage().copy(f"{bucket}/a", f"{bucket}/b")
    assert tokens == [None, "token 1", "token 2"]
    assert copy is not None
    assert copy.size_bytes == 7
    assert gcs.read(f"{bucket}/b") == b"content"


@pytest.mark.slow
def test_between_disk_and_the_bucket(
    gcs: ProxiedGcs, bucket: str, first: str, expected: Tree, tmp_path: Path
) -> None:
    """By way of the worker, images unread all the same."""
    local = tmp_path / "out"
    assert reuse_of(run(*words(f"{bucket}/in", local, "--reuse", first)))["copied_shards"] == SHARDS
    assert read_dataset(local) == expected
    back = run(*words(f"{bucket}/in", f"{bucket}/v3", "--reuse", str(local)))
    assert reuse_of(back)["copied_shards"] == SHARDS
    assert gcs.read_dataset(f"{bucket}/v3") == expected
    assert images_read(gcs) == {}
    assert copies(gcs) == []


def test_by_fsspec(shapes: Path, expected: Tree) -> None:
    memory.clear()
    root = "memory://host"
    assert run(*words(shapes, f"{root}/v1")).exit_code == 0
    shard = f"{root}/v1/coco-train.tfrecord-00001-of-{SHARDS:05}"
    for damaged in (0, 1):
        output = f"{root}/out{damaged}"
        reuse = reuse_of(run(*words(shapes, output, "--reuse", f"{root}/v1")))
        assert (reuse["copied_shards"], reuse["damaged_shards"]) == (SHARDS - damaged, damaged)
        written = memory.read_tree(output)
        assert not [path for path in written if path.startswith(".staging")]
        assert dataset_files(written) == expected
        # It has the same length, so only the checksum differs.
        data = storage_for(shard).read(shard)
        memory.write(shard, bytes([data[0] ^ 1]) + data[1:])
