"""Every exit code other than 0 has its reason in the last line on stderr, in each way of printing.

Those of interrupts are in `test_interrupt`, of leases in `test_two_runs`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.support.builds import build
from tests.support.dataset import Run, coco_words, run
from tests.support.voc_files import small_voc

JSON_LOG = ("--log-format", "json")


@pytest.fixture(scope="module")
def folder(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole dataset, a damaged one, inputs of which nothing or too little is left."""
    folder = tmp_path_factory.mktemp("reasons")
    assert build(*coco_words(shapes, "")[1:-2], output=folder / "whole").exit_code == 0
    shutil.copytree(folder / "whole", folder / "damaged")
    (folder / "damaged" / "labels.txt").write_text("x\n")
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").touch()
    files = {f"voc/{name}": data for name, data in small_voc().items()}
    files |= {name: b"no image" for name in ("bad/a/1.jpg", "bad/b/2.jpg", *files) if "jpg" in name}
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    for name in ("x/1.png", "y/1.png"):
        path = folder / "twice" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    return folder


IMAGES = "image-folder --output {out} --images {folder}"
# (command line, exit code, what the last line says)
CASES = [
    ("", 2, "expected a command (build, "),
    ("bild", 2, "did you mean build?"),
    ("build", 2, "build: "),
    ("build none.yaml", 2, "no such config file"),
    ("build coco --output x", 2, "missing --images"),
    ("build --help --x no.py:Boxes", 0, ""),
    ("build no.py:Boxes --help", 2, "no.py"),
    ("formats cocoo", 2, "did you mean 'coco'?"),
    (f"build {IMAGES}/none", 1, "/none: "),
    (f"plan {IMAGES}/none", 1, "/none: "),
    (f"build {IMAGES}/bad", 3, "too many rejects"),
    ("build voc --output {out} --root {folder}/voc", 3, "too many rejects"),
    (
        f"build {IMAGES}/twice --set duplicates.contradictions=refuse",
        3,
        "it has duplicates that the config refuses: contradictions",
    ),
    (f"build {IMAGES}/twice --set expect.min_images=9", 3, "expect"),
    ("build image-folder --images {folder}/twice --output {folder}/mine", 2, "notes.txt"),
    ("build image-folder --images {folder}/twice --output {folder}/whole", 2, "--overwrite"),
    ("show {folder}/none", 1, "nothing is there"),
    ("show {folder}/whole --image 1000", 1, "no example 1,000"),
    ("show {folder}/whole --image 1 --output x.jpg", 2, ".png"),
    ("stats {folder}/none", 1, "nothing is there"),
    ("stats {folder}/whole --report {folder}/mine/notes.txt", 2, "--overwrite"),
    ("report {folder}/none", 1, "nothing is there"),
    ("report {folder}/whole --output {folder}/mine/notes.txt", 2, "--overwrite"),
    ("diff {folder}/none {folder}/whole", 1, "nothing is there"),
    ("verify {folder}/none", 1, "nothing is there"),
    ("verify {folder}/damaged", 5, "damaged: {folder}/damaged: 1 problem"),
    ("verify {folder}/damaged --quick", 5, "damaged: {folder}/damaged: 1 problem"),
    ("verify {folder}/damaged --repair none.yaml", 2, "none.yaml"),
    ("init {folder}/none", 1, "there is no such folder"),
    ("init {folder}/mine", 1, "no dataset is recognized here"),
    ("sample shapes --images 1 --output {folder}/mine", 2, "is not empty"),
]
TAKE_JSON = ("build", "plan", "show", "stats", "diff", "verify")


def words_of(line: str, *, folder: Path, out: Path) -> list[str]:
    return [word.format(folder=folder, out=out) for word in line.split(" ") if word]


def last_line(result: Run) -> str:
    assert result.stderr.endswith("\n")
    last = result.stderr[:-1].rpartition("\n")[2]
    assert last.startswith("shardbeam: error: "), result.stderr
    return last


@pytest.mark.parametrize(("line", "exit_code", "reason"), CASES)
def test_the_last_line_says_why(
    line: str, exit_code: int, reason: str, folder: Path, tmp_path: Path
) -> None:
    words = words_of(line, folder=folder, out=tmp_path / "out")
    ways: list[tuple[str, ...]] = [()]
    if line.partition(" ")[0] in TAKE_JSON and "--output x" not in line:
        ways.append(("--json",))
    for flags in ways:
        result = run(*words, *flags)
        assert result.exit_code == exit_code, result
        if exit_code:
            assert reason.format(folder=folder) in last_line(result)


def test_the_last_line_does_not_repeat_the_summary(folder: Path, tmp_path: Path) -> None:
    words = words_of(f"build {IMAGES}/bad --fractions a=0.5,b=0.5", folder=folder, out=tmp_path)
    result = run(*words)
    rejects = next(line for line in result.stdout.splitlines() if line.startswith("rejects: "))
    assert [path.suffix for path in Path(rejects.removeprefix("rejects: ")).iterdir()]
    assert "not_an_image; the first: " in result.stdout
    assert last_line(result) == (
        f"shardbeam: error: refused, nothing committed: {tmp_path}; too many rejects: split 'a': "
        "1 of 1 inputs rejected (100.00%); rejects.max_ratio allows 1.00%; the summary on stdout "
        f"says more; {rejects}"
    )


@pytest.mark.parametrize(
    ("line", "exit_code", "reason"), [case for case in CASES if case[0].startswith(("build", "pl"))]
)
def test_the_last_line_of_a_json_log_says_why(
    line: str, exit_code: int, reason: str, folder: Path, tmp_path: Path
) -> None:
    words = words_of(line, folder=folder, out=tmp_path / "out")
    result = run(*words, *JSON_LOG)
    assert result.exit_code == exit_code
    if exit_code:
        last = json.loads(result.stderr.splitlines()[-1])
        assert (last["exit_code"], last["severity"]) == (exit_code, "ERROR")
        assert reason.format(folder=folder) in last["message"]
