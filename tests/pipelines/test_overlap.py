"""What a command writes is no input, and lies in no input and no committed dataset."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import fsspec
import pytest

import shardbeam
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.overlap import check_apart, check_file, check_outside_datasets
from tests.support.dataset import coco_words, read_tree, run

LIES = "lies in a dataset ({d}/dataset_info.json), to which nothing may be added"
WITHIN, HOLDS, ITSELF = "lies within the input ", "holds the input ", " itself; choose another path"
CONVERT = "convert {d} --container tfrecord --overwrite --output "
BUILD = "build coco --images s/images --annotations s/annotations/instances.json --output "
TFRECORD = "build tfrecord --overwrite --name shapes --tfrecords "


@pytest.fixture(scope="module")
def built(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed dataset, to be read only."""
    output = tmp_path_factory.mktemp("built") / "d"
    words = coco_words(shapes, output, "--set", "output.num_shards=2", "--name", "shapes")
    assert run(*words, "--limit", "8", "--set", "output.path=" + str(output)).exit_code == 0
    return output.with_name("d-limit-8")


@pytest.fixture
def dataset(built: Path, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The dataset `d` in the current folder, with its input `s`, links to both, and others."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(built, "d")
    shutil.copytree(shapes / "images", "s/images")
    Path("s/annotations").mkdir()
    shutil.copy(shapes / "annotations/instances.json", "s/annotations")
    os.symlink("d", "link")
    os.symlink("s/images", "images")
    Path("others").mkdir()
    for shard in sorted(Path("d").glob("*.tfrecord-*")):
        shutil.copy(shard, "others")
    Path("linked").mkdir()
    os.symlink("../d/shapes-train.tfrecord-00000-of-00001", "linked/a.tfrecord")
    Path("latest").write_text(f"{tmp_path}/d\n")
    return tmp_path / "d"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        *((f"{CONVERT}{output}", ITSELF) for output in ("link", "d/.", "{d}", "link/../d/")),
        (f"{CONVERT}link/more", WITHIN),
        (f"{CONVERT}d/index", WITHIN),
        (f"{TFRECORD}d --output d", ITSELF),
        (f"{TFRECORD}link --output d", ITSELF),
        (f"{TFRECORD}{{d}}/*.tfrecord-* --output link", HOLDS),
        (f"{TFRECORD}linked --output d", HOLDS),
        (f"{TFRECORD}others --output others/new", WITHIN),
        (f"{BUILD}d/new", LIES),
        (f"{BUILD}link/new/folder", LIES),
        (f"{BUILD}new --set output.latest={{d}}/latest", LIES),
        (f"{BUILD}new --set output.latest={{d}}/../s/annotations/instances.json", ITSELF),
        (f"{BUILD}s/images/new", WITHIN),
        (f"{BUILD}images/new", WITHIN),
        (f"{BUILD}images/../images", ITSELF),
        (f"{BUILD}s", HOLDS),
        (f"{BUILD}d --overwrite --name shapes --exclude link/labels.txt", HOLDS),
        ("plan" + BUILD.removeprefix("build") + "images/new", WITHIN),
        ("sample shapes --images 1 --output link/sample", LIES),
        ("sample shapes --images 1 --output gs://b/sample", "expected a folder on disk"),
        ("export {d} --format coco --output link/coco", LIES),
        ("export others --format coco --output others/coco", WITHIN),
        ("index {d} --output link/more", LIES),
        ("report {d} --examples 1 --output link/report.html", LIES),
        ("report latest --examples 1 --overwrite --output latest", ITSELF),
        ("report d --overwrite --images s/images --output images/000000000001.jpg", "exists, and"),
        ("report d --overwrite --keys s/keys --output s/keys", ITSELF),
        ("report others --overwrite --output others/{shard}", "exists, and is not a report"),
        ("stats others/{shard} --overwrite --report others/../others/{shard}", ITSELF),
        ("stats {d} --report link/index/stats.json", LIES),
        ("verify {d} --report link/verify.json", LIES),
        ("show {d} --image 1 --output link/1.svg", LIES),
        ("init s --format coco --output link/s.yaml", LIES),
        ("init s --format coco --overwrite --output s/annotations/instances.json", "not a config"),
    ],
)
def test_what_is_refused(words: str, problem: str, dataset: Path) -> None:
    Path("s/keys").write_text("000000000001.jpg\n")
    before = read_tree(dataset.parent)
    names = {"d": str(dataset), "shard": "shapes-train.tfrecord-00000-of-00001"}
    result = run(*words.format(**names).split(), exit_code=2)
    assert result.stderr.splitlines()[-1].startswith("shardbeam: error: ")
    assert problem.format(**names) in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert read_tree(dataset.parent) == before
    assert Path("link").is_symlink()


@pytest.mark.parametrize(
    "words",
    [
        "convert link --container tfrecord --output d2",
        "build tfrecord --tfrecords others/{shard} --output others/new",
        "index {d} --output d-index",
        "index others --output others",
        "report {d} --examples 1 --output report.html",
        "report others --examples 1 --output others/report.html",
        "stats {d} --report stats.json",
        "show others --image 1 --output others/1.html",
        "init s --format coco --output s/s.yaml --overwrite",
        "export others/{shard} --format coco --output others/coco --overwrite",
    ],
)
def test_what_goes_on_working(words: str, dataset: Path) -> None:
    """Also a second time, over what the command itself has written."""
    before = read_tree(dataset)
    names = {"d": str(dataset), "shard": "shapes-train.tfrecord-00000-of-00001"}
    for again in ((), ("--overwrite",)):
        run(*words.format(**names).split(), *again, exit_code=0)
    assert read_tree(dataset) == before


def test_a_dataset_within_another_can_be_repaired(dataset: Path) -> None:
    """Older versions wrote such datasets."""
    words = f"{BUILD}new --set output.num_shards=1".split()
    assert run(*words).exit_code == 0
    shutil.move("new", "d/new")
    words[words.index("new")] = "d/new"
    (dataset / "new/labels.txt").unlink()
    run(*words, "--if-changed", exit_code=0)
    assert "unchanged: " in run(*words, "--if-changed").stdout


# Another dataset in the output


def test_another_dataset_is_not_replaced(dataset: Path, shapes: Path) -> None:
    folders = ("build", "image-folder", "--images", f"{shapes}/class_folders", "--output", "link")
    before = read_tree(dataset)
    result = run(*folders, "--overwrite", "--name", "mine", exit_code=2)
    assert result.stderr == (
        f"shardbeam: error: {dataset.parent}/link: holds shapes 1.0.0, 8 examples from coco; "
        "--overwrite replaces it only with a dataset of its name or its formats, not with mine "
        f"from image-folder; choose another output.path, such as {dataset.parent}/link-mine\n"
    )
    assert read_tree(dataset) == before
    with pytest.raises(shardbeam.ShardbeamError, match="holds shapes"):
        shardbeam.build(
            {
                "name": "mine",
                "version": "1.0.0",
                "source": {"format": "image-folder", "images": f"{shapes}/class_folders"},
                "output": {"path": "d"},
            },
            overwrite=True,
        )
    # The same name, with another format; then the same format, with another name.
    result = run(*folders, "--overwrite", "--name", "shapes", "--version", "2.0.0", exit_code=0)
    assert "\nreplaced: shapes 1.0.0, 8 examples\n" in result.stdout
    result = run(*folders, "--overwrite", "--name", "mine", "--json")
    assert json.loads(result.stdout)["replaced"] == "shapes 2.0.0, 40 examples"
    result = run(*folders, "--if-changed", "--name", "mine", "--json")
    assert json.loads(result.stdout)["replaced"] == ""


def test_a_refused_build_replaces_nothing(dataset: Path) -> None:
    words = f"{BUILD}d --overwrite --name shapes --json --set expect.min_images=1000".split()
    result = run(*words)
    assert (result.exit_code, json.loads(result.stdout)["replaced"]) == (3, "")
    assert run("verify", str(dataset), "--quick").exit_code == 0


# In storage


@pytest.mark.parametrize(
    ("output", "source", "problem"),
    [
        ("gs://b/a/d", "gs://b/a/d/", ITSELF),
        ("gs://b/a/./d/", "gs://b//a/d", ITSELF),
        ("gcs://b/a/x/../d", "gs://b/a/d", ITSELF),
        ("gs://b/d//new", "gs://b/d", WITHIN),
        ("gs://b/d", "gs://b/d/train.tfrecord", HOLDS),
        ("gs://b", "gs://b/d/*.tar", HOLDS),
        ("gs://b/d2", "gs://b/d", ""),
        ("gs://b/d/a", "gs://b/d/b", ""),
        ("gs://b/d", "gs://c/d", ""),
        ("gs://b/d", "/b/d", ""),
        ("s3://b/d", "gs://b/d", ""),
    ],
)
def test_uris(output: str, source: str, problem: str) -> None:
    if not problem:
        check_apart(output, name="--output", inputs=[source])
        return
    with pytest.raises(UsageError, match=problem):
        check_apart(output, name="--output", inputs=["/tmp", source])


def test_a_dataset_in_storage() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/overlap/d/dataset_info.json", b"{}")
    for path in ("memory://overlap/d/new", "memory://overlap/d//new/", "memory://overlap/d/"):
        with pytest.raises(UsageError, match="lies in a dataset"):
            check_outside_datasets(path, name="--output")
    check_outside_datasets("memory://overlap/d/", name="--output", may_be_one=True)
    check_outside_datasets("memory://overlap/d2", name="--output")
    with pytest.raises(UsageError, match="lies in a dataset"):
        check_file("memory://overlap/d/report.html", name="--output", inputs=())
    memory.rm("/overlap", recursive=True)
