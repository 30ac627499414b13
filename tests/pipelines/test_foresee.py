"""`shardbeam plan` and `shardbeam init` say which images a build will reject."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardbeam.pipelines.cli import summary
from shardbeam.pipelines.preview import foresee_memory
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.formats import names
from tests.support.archive_files import Files, write_files
from tests.support.builds import Json
from tests.support.dataset import Run, run
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
            splits = {"train": SplitOutcome(images=images, shards=images // 1000)}
            foreseen = foresee_memory(splits, plan_bytes=plan_bytes, processes=1)
            assert 0.98 <= foreseen / build_bytes <= 1.2


def test_the_memory_of_many_small_images_is_about_what_was_measured() -> None:
    """They are in few shards, or written in two processes."""
    rows = re.findall(
        r"\| 300,000 \| (\d+) \| (\d) \| `(?:none|decode)` \| ([\d,]+) \|",
        RESULTS.read_text("utf-8"),
    )
    assert len(rows) == 4
    for shards, processes, megabytes in rows:
        splits = {"train": SplitOutcome(images=300_000, shards=int(shards))}
        foreseen = foresee_memory(splits, plan_bytes=142_000_000, processes=int(processes))
        assert 0.98 <= foreseen / 1e6 / float(megabytes) <= 1.2


RESIZES = ("--set", "image.resize={width: 32, height: 32}"), ("--set", "image.max_side=32")


@pytest.mark.parametrize("flags", RESIZES)
def test_the_bytes_of_a_plan_know_the_resize(flags: tuple[str, ...], data: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(40):
        pixels = rng.integers(0, 255, (200, 300, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(data / "cat" / f"large{number}.jpg")
    whole = json.loads(plan_folders("--json"))
    assert not [line for line in whole["notes"] if "estimate" in line]
    planned = json.loads(plan_folders("--json", *flags))
    words = ("build", "image-folder", "--images", "d", "--output", "out", *flags, "--json")
    built = json.loads(run(*words, exit_code=0).stdout)
    (before,), (plan,), (build,) = (
        [split["num_bytes"] for split in result["splits"].values()]
        for result in (whole, planned, built)
    )
    assert before > 5 * build
    assert 0.6 < plan / build < 1.2
    assert "the bytes are an estimate: 16 images were read and resized" in planned["notes"]
    assert planned["splits"]["train"]["shards"] == built["splits"]["train"]["shards"]


def test_images_that_cannot_be_read_are_no_sample(data: Path) -> None:
    for file in data.rglob("*.jpg"):
        file.write_bytes(b"no picture" * 100)
    planned = json.loads(plan_folders("--json", "--set", "image.max_side=32"))
    assert planned["splits"]["train"]["num_bytes"] > 6000
    assert planned["notes"] == []


def test_a_plan_says_what_memory_a_build_takes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "machine_bytes", lambda: 10**12)
    line = "memory: a build in 1 process of this machine takes about "
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


def init_and_build(*words: str, exit_code: int = 0) -> tuple[str, str]:
    """Writes a config and builds it; returns the config, and what `init` says."""
    made = run("init", *words, exit_code=0)
    Path("made.yaml").write_text(made.stdout)
    run("build", "made.yaml", "--overwrite", exit_code=exit_code)
    return made.stdout, made.stderr


def test_init_tolerates_nothing_that_it_foresees(data: Path) -> None:
    write_files(data, {f"cat/{number}.jpg": JPEG for number in range(20)})
    text, told = init_and_build("d")
    assert "\n# rejects: {max_ratio: 0.05}  # tolerate 5 %" in text
    assert "reject" not in told
    write_files(data, {"stray.jpg": JPEG, "dog/x.jxl": b"x"})
    text, told = init_and_build("d", "--format", "image-folder", exit_code=3)
    lines = [
        "will be rejected: split 'train': 1 no_class_folder; the first: stray.jpg (no_class_folder"
        ": the image is in no class folder: <class>/<image> expected)",
        "will be rejected: 1 image has the extension of formats that cannot be decoded, such as "
        "dog/x.jxl; convert such files to JPEG or PNG first",
        "a build will be refused: split 'train': 2 of 25 inputs rejected (8.00%); the default "
        "allows 1%, and more only of damaged pictures, not of these: 1 no_class_folder, "
        "1 unsupported_image",
        "fix that first; or, if the rest is the dataset that you want, take the # off the line "
        "`rejects` of the config",
    ]
    assert "".join(f"{line}\n" for line in lines) in told
    assert "".join(f"# {line}\n" for line in lines) in text
    # The key is there, but is not active; it does what the comment says.
    key = "rejects: {max_ratio: 0.08}"
    passed = "1 no_class_folder in train, 1 unsupported_image in train"
    comment = f"# {key}  # let these pass: {passed}"
    assert [line for line in text.splitlines() if "max_ratio" in line] == [comment]
    Path("tolerant.yaml").write_text(text.replace(f"# {key}", key))
    built = run("build", "tolerant.yaml", "--overwrite", exit_code=0)
    assert built.stdout.startswith(
        "split 'train': 2 of 25 inputs rejected (8.00%); rejects.max_ratio allows it\n\nsplit  "
    )


def test_no_tolerance_helps_where_nothing_is_left(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "import_heif", lambda: None)
    for path in [*data.glob("*/*.jpg")]:
        path.rename(path.with_suffix(".heic"))
    text, told = run("init", "d", exit_code=0)[1:]
    assert "will be rejected: 6 images have extensions of formats that cannot be decoded" in told
    assert "pip install 'pillow-heif>=1.4'" in told
    assert "a build will be refused: split 'train': 6 of 6 inputs rejected" in told
    assert "max_ratio: 1" not in text
    assert "take the # off" not in text


def plan_and_build(*words: str) -> tuple[Json, Run]:
    """Plans the folders of classes, and builds them; returns the plan's summary."""
    planned = json.loads(plan_folders("--json", *words))
    built = run("build", "image-folder", "--images", "d", "--output", "out", *words)
    is_foreseen = any("a build would be refused" in line for line in planned["warnings"])
    assert is_foreseen == (built.exit_code == 3), planned["warnings"]
    return planned, built


def test_empty_files(data: Path) -> None:
    write_files(data, {f"cat/{number}.jpg": JPEG for number in range(3, 57)})
    write_files(data, {f"dog/{name}.jpg": b"" for name in "abc"})
    planned, built = plan_and_build()
    assert "3 images are empty files, such as dog/a.jpg, dog/b.jpg, dog/c.jpg; copy the files" in (
        " ".join(planned["notes"])
    )
    assert planned["splits"]["train"]["rejected"] == {"zero_byte": 3}
    assert planned["splits"]["train"]["examples"] == 60
    # They are few; the summary names each.
    for name in "abc":
        line = (
            f"warning: rejected from split 'train': dog/{name}.jpg (zero_byte: the file is empty)"
        )
        assert line in built.stdout
    assert "will be rejected: 3 images are empty files" in run("init", "d").stderr
    write_files(data, {"dog/d.jpg": b""})
    assert plan_and_build("--overwrite")[1].exit_code == 3
    assert "4 zero_byte" in run("init", "d").stderr


def test_empty_files_are_all_that_a_class_or_a_source_has(data: Path, tmp_path: Path) -> None:
    write_files(data, {f"cat/{number}.jpg": JPEG for number in range(3, 57)})
    write_files(data, {"lynx/a.jpg": b""})
    _, built = plan_and_build()
    assert "or 3 damaged pictures, but not all images of class lynx\n" in built.stdout
    assert "not all images of class lynx" in run("init", "d").stderr
    # Another picture of the class, but not in this source.
    write_files(data, {"lynx/a.jpg": JPEG})
    write_files(tmp_path / "e", {"lynx/b.jpg": b""})
    assert plan_and_build("--overwrite")[1].exit_code == 0
    sources = [{"format": "image-folder", "images": folder} for folder in "de"]
    config = {"name": "two", "source": sources, "output": {"path": "two"}}
    Path("two.yaml").write_text(json.dumps(config))
    told = run("plan", "two.yaml", exit_code=0).stdout
    assert "a build would be refused: " in told
    assert "but not all images of source 'source/1'" in told
    assert "not all images of source 'source/1'" in run("build", "two.yaml", exit_code=3).stdout


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
