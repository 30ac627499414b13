"""`shardbeam plan` and `shardbeam init` say which images a build will reject."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shardbeam.pipelines.cli import summary
from shardbeam.pipelines.preview import foresee_memory
from shardbeam.transforms.formats import names
from tests.support.archive_files import Files, write_files
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg

RESULTS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"
JPEG = plain_jpeg()
FOLDERS: Files = {f"{name}/{number}.jpg": JPEG for name in ("cat", "dog") for number in range(3)}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n" % (b"ab" * 32)


def test_the_memory_that_a_plan_foresees_is_about_what_was_measured() -> None:
    """`plan` and `build` are rows below each other."""
    rows = re.findall(
        r"\| `(plan|build)` \| \S+ \| ([\d,]+) \| ([\d,]+) \| [\d.]+ \|", RESULTS.read_text("utf-8")
    )
    assert [command for command, *_ in rows] == ["plan", "build"] * 4
    peaks = [[int(cell.replace(",", "")) * 10**6 for cell in cells] for _, *cells in rows]
    for plan, build in zip(peaks[::2], peaks[1::2], strict=True):
        for images, plan_bytes, build_bytes in zip((30_000, 118_287), plan, build, strict=True):
            foreseen = foresee_memory(images=images, plan_bytes=plan_bytes)
            assert 0.98 <= foreseen / build_bytes <= 1.2


def test_a_plan_says_what_memory_a_build_takes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "machine_bytes", lambda: 10**12)
    line = "memory: a build in one process takes about "
    (found,) = [each for each in plan_folders().splitlines() if each.startswith(line)]
    # The plan runs in the process of the tests, which may hold much.
    assert found.endswith(
        ("MB, a command that submits a job 200 MB.", "GB, a command that submits a job 200 MB.")
    )
    monkeypatch.setattr(summary, "machine_bytes", lambda: 10**8)
    assert "a job 200 MB. This machine has 100.0 MB: use Flink or Dataflow" in plan_folders()
    fields = json.loads(plan_folders("--json"))
    assert 210 * 10**6 <= fields["memory_bytes"] < 10**11


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images in folders of classes, below the working folder."""
    monkeypatch.chdir(tmp_path)
    return write_files(tmp_path / "d", FOLDERS)


def plan_folders(*words: str) -> str:
    """Plans the folders of classes; returns what it says."""
    planned = run("plan", "image-folder", "--images", "d", "--output", "out", *words, exit_code=0)
    return planned.stdout


def test_files_that_cannot_be_decoded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be decoded" not in plan_folders()
    write_files(data, {"cat/IMG_1.HEIC": JPEG, "dog/b.jxl": JPEG})
    monkeypatch.setattr(names, "import_heif", lambda: pytest)
    told = plan_folders()
    assert "1 image has the extension of formats that cannot be decoded, such as dog/b.jxl" in told
    monkeypatch.setattr(names, "import_heif", lambda: None)
    told = plan_folders()
    assert "2 images have extensions of formats that cannot be decoded, such as cat/IMG_1" in told
    assert "; pip install 'pillow-heif>=1.4', or convert such files to JPEG or PNG first" in told
    assert "a build would be refused: split 'train': 2 of 8 inputs rejected (25.00%)" in told
    (split,) = json.loads(plan_folders("--json"))["splits"].values()
    assert (split["examples"], split["rejected"]) == (6, {"unsupported_image": 2})


def test_pointers_of_git_lfs(data: Path) -> None:
    assert "Git LFS" not in plan_folders()
    write_files(data, {"cat/x.jpg": POINTER, "dog/y.jpg": POINTER})
    told = plan_folders()
    assert f"warning: {data}/cat/x.jpg: it is a Git LFS pointer; `git lfs pull`" in told
    assert "2 images are as short as a pointer" in told


def test_short_images_are_no_pointers(data: Path) -> None:
    write_files(data, {"cat/x.jpg": b"", "cat/y.jpg": JPEG[:50]})
    assert "Git LFS" not in plan_folders()


def test_the_first_rejects_are_named(data: Path) -> None:
    write_files(data, {"stray.jpg": JPEG})
    told = plan_folders()
    assert "split 'train': 1 no_class_folder; the first: stray.jpg (no_class_folder: " in told


def init_and_build(*words: str) -> tuple[str, str]:
    """Writes a config and builds it; returns the config, and what `init` says."""
    made = run("init", *words, exit_code=0)
    Path("made.yaml").write_text(made.stdout)
    run("build", "made.yaml", "--overwrite", exit_code=0)
    return made.stdout, made.stderr


def test_init_tolerates_what_it_foresees(data: Path) -> None:
    write_files(data, {f"cat/{number}.jpg": JPEG for number in range(20)})
    assert "max_ratio: 0.05}" in init_and_build("d")[0]
    write_files(data, {"stray.jpg": JPEG, "dog/x.jxl": b"x"})
    text, told = init_and_build("d", "--format", "image-folder")
    assert "\nrejects: {max_ratio: 0.08}\n" in text
    assert "# rejects:" not in text
    assert "will be rejected: split 'train': 1 no_class_folder; the first: stray.jpg" in told
    assert "will be rejected: 1 image has the extension of formats that cannot be decoded" in told
    assert "rejects.max_ratio tolerates these" in told


def test_init_names_pointers_of_git_lfs(data: Path) -> None:
    write_files(data, {"cat/x.jpg": POINTER})
    assert "d/cat/x.jpg: it is a Git LFS pointer; `git lfs pull`" in run("init", "d").stderr
    write_files(data.parent / "e", {"a.jpg": JPEG, "ann.json": POINTER})
    result = run("init", "e", exit_code=1)
    assert "ann.json: the file is a Git LFS pointer: `git lfs pull` fetches" in result.stderr


@pytest.mark.parametrize(("here", "there"), [("d", "."), ("d/cat", "..")])
def test_the_output_is_outside_of_the_data(
    here: str, there: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent / here)
    made = run("init", there, exit_code=0)
    config = data.parent / "made.yaml"
    config.write_text(made.stdout)
    run("build", str(config), exit_code=0)
    assert (data.parent / "tfrecords/d/manifest.json").is_file()


def test_init_asks_a_format_of_ones_own(data: Path) -> None:
    Path("mine.py").write_text(
        "from shardbeam.transforms.formats.image_folder import ImageFolderFormat\n"
        "class Mine(ImageFolderFormat, frozen=True, kw_only=True):\n"
        "    pass\n"
    )
    text, told = init_and_build("d", "--format", "mine.py:Mine")
    assert "format: mine.py:Mine" in text or "format: 'mine.py:Mine'" in text
    assert told.startswith("mine.py:Mine: 2 folders of classes, 6 images")


@pytest.mark.parametrize(("name", "folder"), [("d/a.csv", "d"), ("b.ZIP", "b.ZIP"), ("c.csv", ".")])
def test_data_in_place_of_a_config(name: str, folder: str, data: Path) -> None:
    write_files(data.parent, {name: "image,label\n"})
    result = run("plan", name, exit_code=2)
    assert f"plan: {name} is data, and no config file; `shardbeam init {folder}`" in result.stderr


def test_the_sample_of_a_dataset_is_named(data: Path) -> None:
    build = ("build", "image-folder", "--images", "d", "--output", "out/x", "--limit", "2")
    assert run(*build).exit_code == 0
    result = run("report", "out/x", exit_code=1)
    assert "out/x: nothing is there; a sample of it (`limit`) lies beside it: out/x-limit-2" in (
        result.stderr
    )
    assert "sample" not in run("report", "out/y").stderr


def test_plan_looks_at_the_output_like_a_build(data: Path) -> None:
    assert "would be refused" not in plan_folders()
    write_files(data.parent, {"file": "x", "others/notes.txt": "x"})
    told = plan_folders("--set", "output.path=others")
    assert "a build would be refused: " in told
    assert "holds files that are not Shardbeam's (notes.txt)" in told
    assert "file/x: cannot be a dataset's folder" in plan_folders("--set", "output.path=file/x")
    assert run("build", "image-folder", "--images", "d", "--output", "out").exit_code == 0
    assert "out: holds a committed dataset already; add --overwrite" in plan_folders()
    assert "would be refused" not in plan_folders("--overwrite")
    assert "would be refused" not in plan_folders("--if-changed")
