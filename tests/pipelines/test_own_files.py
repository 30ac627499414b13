"""A command's output file only replaces its own file about the same dataset."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shardbeam.readers.open.stored_dataset import dataset_name
from tests.support.dataset import coco_words, read_tree, run

# {the file: the command that writes it}
WRITERS = {
    "v.json": "verify {dataset} --report {file}",
    "s.json": "stats {dataset} --report {file}",
    "c.json": "stats {dataset} --recount --report {file}",
    "p.svg": "show {dataset} --image 1 --output {file}",
    "r.html": "report {dataset} --examples 2 --output {file}",
}


@pytest.fixture(scope="module")
def datasets(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two of the same images, whose names begin alike."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("shapes_1", "shapes_12"):
        assert run(*coco_words(shapes, folder / name, "--set", f"name={name}")).exit_code == 0
    return folder / "shapes_1", folder / "shapes_12"


def write(name: str, dataset: Path, file: Path, *flags: str) -> str:
    words = WRITERS[name].format(dataset=dataset, file=file).split()
    result = run(*words, *flags)
    assert result.exit_code in (0, 2), result
    return result.error if result.exit_code else ""


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_replaced(name: str, datasets: tuple[Path, Path], tmp_path: Path) -> None:
    first, other = datasets
    file = tmp_path / name
    assert write(name, first, file) == ""
    ours = file.read_bytes()
    # The same again, and another version of the dataset.
    shutil.copytree(first, tmp_path / "moved")
    assert write(name, tmp_path / "moved", file) == ""
    kept = file.read_bytes()
    refused = f"{file} exists, and is not a "
    assert refused in (message := write(name, other, file))
    assert "named 'shapes_12'; name another file, or replace it with --overwrite" in message
    assert file.read_bytes() == kept
    assert write(name, other, file, "--overwrite") == ""
    assert refused in write(name, first, file)
    # Files that others made.
    for content in (b"", b"mine", b"x" + ours, ours[:20], b"{}", b"\x89PNG\r\n\x1a\n", ours[20:]):
        file.write_bytes(content)
        assert refused in write(name, first, file)
        assert file.read_bytes() == content
    assert write(name, first, file, "--overwrite") == ""


def test_one_kind_does_not_replace_another(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "x.svg"
    for name in ("v.json", "s.json", "p.svg", "r.html"):
        file.unlink(missing_ok=True)
        assert write(name, datasets[0], file) == ""
        for other in WRITERS.keys() - {name}:
            if {name, other} != {"s.json", "c.json"}:
                assert "exists, and is not a " in write(other, datasets[0], file)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("flags", [(), ("--overwrite",)])
def test_what_is_no_file_stays(
    name: str, flags: tuple[str, ...], datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    pipe, folder, link = (tmp_path / f"{kind}.svg" for kind in ("pipe", "folder", "link"))
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(tmp_path / "nowhere")
    for path, problem in (
        (pipe, f"{pipe} exists and is not a file"),
        (folder, f"{folder} exists and is not a file"),
        (link, f"{link} is a link to '{tmp_path}/nowhere', where nothing is"),
    ):
        assert f"{problem}; name another one" in write(name, datasets[0], path, *flags)
    assert pipe.is_fifo()
    assert folder.is_dir()
    assert link.is_symlink()


def test_a_damaged_dataset_keeps_its_name(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(datasets[0], folder)
    report = ("--report", str(tmp_path / "v.json"))
    assert run("verify", str(folder), *report).exit_code == 0
    for name in ("dataset_info.json", "labels.txt"):
        (folder / name).write_bytes(b"\xff{")
        assert run("verify", str(folder), *report).exit_code == 5
    (folder / "manifest.json").write_bytes(b"{")
    assert dataset_name(str(folder)) == "copy"


def test_names_of_datasets(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    pointer = tmp_path / "latest"
    pointer.write_text(f"{datasets[0]}\n")
    shard = next(datasets[0].glob("*.tfrecord-*"))
    for path, name in (
        (datasets[0], "shapes_1"),
        (pointer, "shapes_1"),
        (shard, shard.name),
        (tmp_path / "none", "none"),
    ):
        assert dataset_name(str(path)) == name


def test_what_a_killed_command_has_left_is_removed(
    datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    shard = next(datasets[0].glob("*.tfrecord-*")).name
    ours, young = (f"r.html.{digit * 32}.tmp" for digit in "0f")
    others = [f"x.html.{'0' * 32}.tmp", "r.html.tmp", f"r.html.{'0' * 31}g.tmp", young]
    for name in (ours, *others, f"{shard}.parquet.{'a' * 32}.tmp"):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, None if name == young else (1, 1))
    assert write("r.html", datasets[0], tmp_path / "r.html") == ""
    assert run("index", str(datasets[0]), "--output", str(tmp_path)).exit_code == 0
    assert {*os.listdir(tmp_path)} == {"r.html", f"{shard}.parquet", *others}


def test_nothing_is_left_beside_a_file_that_is_refused(
    datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    for name in WRITERS:
        (tmp_path / name).write_bytes(b"mine")
    before = read_tree(tmp_path)
    for name in WRITERS:
        assert write(name, datasets[0], tmp_path / name)
    assert read_tree(tmp_path) == before
