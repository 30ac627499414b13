"""The same dataset from and to `gs://`, and what it costs in requests."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from shardbeam.transforms.storage import gcs as gcs_storage
from shardbeam.transforms.storage.base import ListingPart
from shardbeam.transforms.storage.gcs import GcsStorage
from tests.support.dataset import Tree, coco_words, dataset_files, read_dataset, run
from tests.support.gcs_server import ProxiedGcs

SETTINGS = ("--set", "output.num_shards=5", "--set", "rejects.max_ratio=1")
SHARDS = 5
IMAGES = 40


def words(shapes: Path | str, output: Path | str, *more: str) -> list[str]:
    return [
        "build",
        "coco",
        *("--images", f"{shapes}/images"),
        *("--annotations", f"{shapes}/annotations/instances.json"),
        *("--output", str(output)),
        *SETTINGS,
        *more,
    ]


@pytest.fixture(scope="module")
def expected(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(shapes, output, *SETTINGS)).exit_code == 0
    return read_dataset(output)


def read_committed(gcs: ProxiedGcs, output: str) -> Tree:
    """Reads a dataset, and checks that nothing is left beside it."""
    tree = gcs.read_tree(output)
    assert not [path for path in tree if path.startswith(".staging")]
    return dataset_files(tree)


def test_from_gcs_to_gcs(gcs: ProxiedGcs, bucket: str, shapes: Path, expected: Tree) -> None:
    gcs.write_folder(f"{bucket}/in", shapes)
    result = run(*words(f"{bucket}/in", f"{bucket}/out/1.0.0", "--json"))
    assert result.exit_code == 0, result.stderr
    assert read_committed(gcs, f"{bucket}/out/1.0.0") == expected

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
        ("--direct_num_workers=2", "--direct_running_mode=multi_threading"),
        ("--processes=3",),
    ],
    ids=["threads", "processes"],
)
def test_two_workers(
    flags: tuple[str, ...], gcs: ProxiedGcs, bucket: str, shapes: Path, expected: Tree
) -> None:
    gcs.write_folder(f"{bucket}/in", shapes)
    result = run(*words(f"{bucket}/in", f"{bucket}/out", *flags, "--json"))
    assert result.exit_code == 0, result.stderr
    assert "has ended" not in result.stderr
    assert read_committed(gcs, f"{bucket}/out") == expected
    assert json.loads(result.stdout)["storage"]["requests"] == gcs.proxy.counts()


def test_from_disk_to_gcs_and_back(
    gcs: ProxiedGcs, bucket: str, shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    assert run(*words(shapes, f"{bucket}/out")).exit_code == 0
    assert read_committed(gcs, f"{bucket}/out") == expected
    gcs.write_folder(f"{bucket}/in", shapes)
    assert run(*words(f"{bucket}/in", tmp_path / "out")).exit_code == 0
    assert read_dataset(tmp_path / "out") == expected


def test_a_long_listing_is_left_to_other_workers(
    gcs: ProxiedGcs,
    bucket: str,
    shapes: Path,
    expected: Tree,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gcs_storage, "_PAGE_SIZE", 4)
    monkeypatch.setattr(gcs_storage, "_FIRST_PAGES", 2)
    gcs.write_folder(f"{bucket}/in", shapes)
    listed = list(GcsStorage().begin_listing(f"{bucket}/in"))
    parts = [each for each in listed if isinstance(each, ListingPart)]
    assert parts
    gcs.proxy.reset()
    result = run(*words(f"{bucket}/in", tmp_path / "out", "--json"))
    assert result.exit_code == 0, result.stderr
    assert read_dataset(tmp_path / "out") == expected
    assert 10 < gcs.proxy.counts()["list"] <= 30
    assert json.loads(result.stdout)["storage"]["requests"] == gcs.proxy.counts()


def test_patterns_of_annotation_files(
    gcs: ProxiedGcs, bucket: str, shapes: Path, expected: Tree, tmp_path: Path
) -> None:
    gcs.write_folder(f"{bucket}/in", shapes)
    for root in (f"{bucket}/in", str(shapes)):
        pattern = f"splits.train.annotations=['{root}/annotations/instance?.json']"
        output = tmp_path / f"out{len(root)}"
        assert run(*words(f"{bucket}/in", output, "--set", pattern)).exit_code == 0
        assert read_dataset(output) == expected
    none = f"splits.train.annotations=['{bucket}/*.json']"
    result = run(*words(f"{bucket}/in", tmp_path / "none", "--set", none))
    assert result.exit_code == 1
    assert f"{bucket}/*.json: no file matches the pattern" in result.stderr


TEXT_FORMAT = '''\
from shardbeam.configs.keys import Location
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.core.records import ImageAnnotations, encode_annotations


class Texts(Format):
    """A text file beside each image, which holds the name of its class."""

    kinds = frozenset({Kind.CLASSIFICATION})
    lists_annotations = True
    images: Location

    def place(self, path, *, root):
        stem, _, extension = path.rpartition(".")
        role = Role.ANNOTATION if extension == "txt" else Role.IMAGE
        return Place(role=role, key=path, join=stem)

    def read_listed(self, data, *, path, root):
        yield Category(name=data.decode())
        annotations = ImageAnnotations(image_id=path, labels=(data.decode(),))
        yield AnnotationEntry(
            key=path.rpartition(".")[0],
            annotations=encode_annotations(annotations),
            file_index=0,
            position=0,
        )
'''


def test_annotations_beside_the_images(
    gcs: ProxiedGcs, bucket: str, shapes: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.py").write_text(TEXT_FORMAT)
    files = {path.name: path.read_bytes() for path in (shapes / "images").iterdir()}
    for number, name in enumerate(list(files)):
        files[f"{name.partition('.')[0]}.txt"] = f"class {number % 3}".encode()
    (tmp_path / "in").mkdir()
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    gcs.write_tree(f"{bucket}/in", files)
    trees: list[Tree] = []
    for root in (tmp_path / "in", f"{bucket}/in"):
        source = {"format": f"{tmp_path}/texts.py:Texts", "images": str(root)}
        config = {"name": "texts", "splits": {"train": source}, "output": {"path": "replaced"}}
        (tmp_path / "config.yaml").write_text(json.dumps(config))
        output = tmp_path / f"out{len(trees)}"
        result = run("build", f"{tmp_path}/config.yaml", "--set", f"output.path={output}")
        assert result.exit_code == 0, result.stderr
        trees.append(read_dataset(output))
    assert trees[0] == trees[1]
    assert trees[0]["labels.txt"] == b"class 0\nclass 1\nclass 2\n"
    gets = Counter(request.name for request in gcs.proxy.requests if request.kind == "get")
    assert gets == {f"in/{name}": 1 for name in files}
