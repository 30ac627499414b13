"""Every exit code other than 0 has its reason in the last line on stderr, in each way of printing.

Those of interrupts are in `test_interrupt`, of leases in `test_two_runs`.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from shardbeam.pipelines.cli.commands import COMMANDS
from shardbeam.transforms.formats.base import built_in_formats
from tests.support.archive_files import write_files
from tests.support.builds import build
from tests.support.dataset import Run, coco_words, run
from tests.support.screens import check_screen
from tests.support.voc_files import small_voc

JSON_LOG = ("--log-format", "json")


# Small files that are named by a command.
TEXTS = {
    "others.txt": b"no such\nat all\n",
    "blank.txt": b"\n\n",
    "utf16.txt": b"\xff\xfe",
    "bad.json": b'{"images": [\n  {"id": 1,]}',
    "info/dataset_info.json": b"{}",
    "pointers/empty": b"",
    "pointers/relative": b"relative/path\n",
    "pointers/gone": b"/no/such/dataset\n",
}


@pytest.fixture(scope="module")
def folder(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole dataset, a damaged one, inputs of which nothing or too little is left."""
    folder = tmp_path_factory.mktemp("reasons")
    build(*coco_words(shapes, "")[1:-2], output=folder / "whole")
    shutil.copytree(folder / "whole", folder / "damaged")
    (folder / "damaged" / "labels.txt").write_text("x\n")
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").touch()
    files = {f"voc/{name}": data for name, data in small_voc().items()}
    files |= {name: b"no image" for name in ("bad/a/1.jpg", "bad/b/2.jpg", *files) if "jpg" in name}
    write_files(folder, {**files, **TEXTS})
    (folder / "shard").mkdir()
    shutil.copy(next((folder / "whole").glob("*.tfrecord-*")), folder / "shard" / "a.tfrecord")
    (folder / "empty" / "cat").mkdir(parents=True)
    (folder / "zips").mkdir()
    for name in ("empty.zip", "zips/part1.zip", "zips/part2.zip"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            if "part" in name:
                archive.writestr("cat/1.jpg", b"x")
    shutil.copy(shapes / "annotations" / "instances.json", folder / "coco.json")
    (folder / "half").mkdir()
    shutil.copy(folder / "whole" / "manifest.json", folder / "half")
    for name in ("x/1.png", "y/1.png"):
        path = folder / "twice" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    return folder


IMAGES = "image-folder --output {out} --images {folder}"
LINES = (
    "",
    "bild",
    "build",
    "build none.yaml",
    "build coco --output x",
    "build --help --x no.py:Boxes",
    "build no.py:Boxes --help",
    "formats cocoo",
    f"build {IMAGES}/none",
    f"build {IMAGES}/empty",
    f"build {IMAGES}/empty.zip",
    f"build {IMAGES}/mine/notes.txt",
    f"plan {IMAGES}/none",
    f"build {IMAGES}/bad",
    "build voc --output {out} --root {folder}/voc",
    f"build {IMAGES}/twice --set duplicates.contradictions=refuse",
    f"build {IMAGES}/twice --set expect.min_images=9",
    "build coco --output {out} --images {folder}/twice --annotations {folder}/bad.json",
    f"build {IMAGES}/twice --masks png",
    f"build {IMAGES}/twice --exclude {{folder}}/none.parquet",
    f"build {IMAGES}/twice --group-by {{folder}}/none.parquet --fractions a=0.5,b=0.5",
    *(
        f"build {IMAGES}/twice --reuse {{folder}}/{name}"
        for name in ("none", "empty", "info", "half")
    ),
    *(
        f"build {IMAGES}/twice --reuse {{folder}}/pointers/{name}"
        for name in ("empty", "relative", "gone")
    ),
    *(
        f"plan image-folder --output {{out}}/{name} --images {{folder}}/twice --if-changed"
        for name in ("{{date}}", "{{date}}-{{fingerprint}}")
    ),
    f"plan {IMAGES}/zips",
    "plan coco --output {out} --images {folder}/zips --annotations {folder}/coco.json",
    "build image-folder --images {folder}/twice --output {folder}/mine",
    "build image-folder --images {folder}/twice --output {folder}/whole",
    "show {folder}/none",
    "show {folder}/whole --image 1000",
    "show {folder}/whole --image 1 --output x.jpg",
    "show {folder}/whole --image 1 --output {folder}/mine/notes.txt/x.svg",
    "show {folder}/whole --split trian",
    "show {folder}/whole --split 7",
    "show {folder}/shard --findings",
    "stats {folder}/none",
    "stats {folder}/whole --report {folder}/mine/notes.txt",
    "report {folder}/none",
    "report {folder}/whole --output {folder}/mine/notes.txt",
    "report {folder}/whole --keys {folder}/others.txt",
    "report {folder}/whole --keys {folder}/blank.txt",
    "report {folder}/whole --keys {folder}/utf16.txt",
    "report {folder}/whole --keys {folder}/none.txt",
    "report {folder}/whole --images {folder}/none",
    "report {folder}/whole --images {folder}/empty",
    "diff {folder}/none {folder}/whole",
    "verify {folder}/none",
    "verify {folder}/damaged",
    "verify {folder}/damaged --quick",
    "verify {folder}/damaged --repair none.yaml",
    "verify {folder}/whole --report {folder}/mine/notes.txt/r.json",
    "verify {folder}/whole --report {folder}/mine",
    "verify {folder}/whole --runner=PrismRunner",
    "index {folder}/whole --output {folder}/mine/notes.txt",
    "convert {folder}/whole --output {out}",
    "convert {folder}/whole --container array_records --output {out}",
    "convert {folder}/none --container tfrecord --output {out}",
    "convert {folder}/shard --container tfrecord --output {out}",
    "export {folder}/whole",
    "export {folder}/whole --format voc --output {out}",
    "export {folder}/whole --format coco --output=",
    "export {folder}/whole --format coco --output gs://b/x",
    "export {folder}/whole --format coco --output {folder}/mine",
    "export {folder}/whole --format coco --output {folder}/mine/notes.txt",
    "unpack {folder}/none --to {out}",
    "unpack {folder}/mine --to {out}",
    "init {folder}/none",
    "init {folder}/mine",
    "init {folder}/twice --format voc",
    "init {folder}/twice --format cocoo",
    "sample shapes --images 1 --output {folder}/mine",
)


def words_of(line: str, *, folder: Path, out: Path) -> list[str]:
    return [word.format(folder=folder, out=out) for word in line.split(" ") if word]


def last_line(result: Run) -> str:
    assert result.stderr.endswith("\n")
    last = result.stderr[:-1].rpartition("\n")[2]
    assert last.startswith("shardbeam: error: "), result.stderr
    return last


def way_of_programs(line: str) -> tuple[str, ...]:
    """The flags with which a program would call the command."""
    if line.startswith(("build", "plan")) and "--help" not in line:
        return JSON_LOG
    takes_json = line.startswith(("show", "stats", "diff", "verify"))
    return ("--json",) if takes_json and " --output " not in line else ()


@pytest.mark.parametrize("builds", [True, False], ids=["builds", "others"])
def test_the_last_line_says_why(folder: Path, tmp_path: Path, builds: bool) -> None:
    """For people, and for programs that read JSON or the lines of a JSON log.

    Programs call each command once for each of its exit codes.
    """
    screen = ""
    called: set[tuple[str, int]] = set()
    lines = [line for line in LINES if line.startswith(("build ", "plan ")) == builds]
    for number, line in enumerate(lines):
        words = words_of(line, folder=folder, out=tmp_path / str(number))
        result = run(*words)
        reason = last_line(result) if result.exit_code else ""
        # The folder of rejects has the time of the run in its name.
        shown = reason.partition("; rejects: ")[0]
        screen += f"$ shardbeam {line}\n{result.exit_code} {shown}\n"
        # What is refused leaves nothing, unless it is a dataset that the next run goes on with.
        assert (tmp_path / str(number)).exists() == (result.exit_code == 3)
        call = (line.partition(" ")[0], result.exit_code)
        if call in called:
            continue
        called.add(call)
        flags = way_of_programs(line)
        again = run(*words, *flags)
        assert again.exit_code == result.exit_code, line
        if flags == JSON_LOG:
            last = json.loads(again.stderr.splitlines()[-1])
            assert (last["exit_code"], last["severity"]) == (result.exit_code, "ERROR")
            first = reason.removeprefix("shardbeam: error: ").partition("; the summary")[0]
            assert first.rpartition(": ")[2] in last["message"].replace("\n", " "), line
        elif reason:
            assert last_line(again) == reason
    for text, name in ((str(folder), "{folder}"), (str(tmp_path), "{out}")):
        screen = screen.replace(text, name)
    for text, name in (
        (", ".join(built_in_formats()), "FORMATS"),
        (", ".join(COMMANDS), "COMMANDS"),
    ):
        screen = screen.replace(text, name)
    check_screen("exit_reasons_of_builds" if builds else "exit_reasons", screen)


def test_the_last_line_does_not_repeat_the_summary(folder: Path, tmp_path: Path) -> None:
    words = words_of(f"build {IMAGES}/bad --fractions a=0.5,b=0.5", folder=folder, out=tmp_path)
    result = run(*words)
    rejects = next(line for line in result.stdout.splitlines() if line.startswith("rejects: "))
    assert [path.suffix for path in Path(rejects.removeprefix("rejects: ")).iterdir()]
    assert "not_an_image; the first: " in result.stdout
    assert last_line(result) == (
        f"shardbeam: error: refused, nothing committed: {tmp_path}; too many rejects; "
        "the summary on stdout says why"
    )
