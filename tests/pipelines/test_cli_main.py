"""The command as a whole: help, exit codes, and output on stdout and stderr."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import shardbeam.pipelines.cli.run
from shardbeam.configs.load import ConfigError
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.cli.main import main
from shardbeam.pipelines.failures import UsageError, explain_failure
from shardbeam.transforms.core.cpus import reachable_cpus
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.base import FormatError
from shardbeam.transforms.formats.coco.coco import CocoFormat
from tests.support.dataset import COMMAND
from tests.support.python_runs import run_python
from tests.support.tfrecords import draw_image, make_example, write_tfrecord

COCO = ["coco", "--images", "i", "--annotations", "a.json", "--output", "o"]


HELP = {
    "--help": "usage: shardbeam [--help] [--version] COMMAND ...",
    "build -h": "usage: shardbeam build CONFIG.yaml",
    "plan x.yaml --runner X --help": "usage: shardbeam plan CONFIG.yaml",
    "show x --help": "usage: shardbeam show PATH",
    "sample shapes --help": "usage: shardbeam sample shapes",
    "--version": f"shardbeam {importlib.metadata.version('shardbeam')}",
}
SHOW_HELP = """
import sys

from shardbeam.pipelines.cli.main import main

for line in sys.argv[1:]:
    assert main(line.split()) == 0, line
    print("NEXT")
print("MODULES", *sys.modules)
"""


def test_help_needs_nothing_heavy() -> None:
    result = run_python(SHOW_HELP, *HELP)
    assert (result.returncode, result.stderr) == (0, "")
    *shown, modules_line = result.stdout.split("NEXT\n")
    for text, usage in zip(shown, HELP.values(), strict=True):
        assert text.startswith(usage)
    modules = set(modules_line.split())
    assert "shardbeam.pipelines.cli.arguments" in modules
    packages = {module.partition(".")[0] for module in modules}
    assert packages.isdisjoint({"apache_beam", "fsspec", "tensorflow", "transforms", "rich"})


READ = """
import sys

import shardbeam
from shardbeam.pipelines.cli.main import main

folder = sys.argv[1]
for line in (
    "index {}/in --output {}/index",
    "show {}/in",
    "report {}/in --output {}/page.html",
    "sample shapes --output {}/sample --images 1 --workers 1",
):
    assert main(line.replace("{}", folder).split()) == 0, line
dataset = shardbeam.open(f"{folder}/in", index=f"{folder}/index", decode=True)
dataset[0], dataset.detection()[0], shardbeam.class_names(f"{folder}/in")
print("MODULES", *sys.modules)
"""


def test_what_reads_and_draws_needs_neither_beam_nor_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    sides = {f"image/object/bbox/{side}": [0.5] for side in ("xmin", "ymin", "xmax", "ymax")}
    image = {"image/encoded": draw_image("JPEG", width=30, height=20)}
    example = make_example({**image, **sides, "image/object/class/label": [1]})
    write_tfrecord(tmp_path / "in" / "a.record", example)
    result = run_python(READ, str(tmp_path))
    assert result.returncode == 0, result.stderr
    modules = set(result.stdout.rpartition("MODULES ")[2].split())
    assert {f"shardbeam.pipelines.commands.{name}" for name in ("show", "sample")} <= modules
    assert {"shardbeam.readers.report.page", "shardbeam.readers.open.sequence"} <= modules
    assert {"apache_beam", "tensorflow", "google.cloud.storage", "fsspec"}.isdisjoint(modules)


def test_help_names_every_flag_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--images", "--split", "--group-by", "--version", "--set", "--if-changed"):
        assert f"\n  {flag} " in text
    # Formats share some flags, but do not mean the same file by them.
    words = " ".join(text.split())
    assert "CSV file of class descriptions (open-images); file with one class name per line" in (
        words
    )
    assert "folder of images/ and labels/ (yolo)" in words


def test_the_help_of_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "coco", "--help"]) == 0
    text = capsys.readouterr().out
    assert main(["formats", "coco"]) == 0
    assert capsys.readouterr().out == text
    assert text.startswith("usage: shardbeam build coco --images DIR --annotations FILE")
    words = " ".join(text.split())
    assert "or by name alone: path, suffix, name --" in words
    assert "COCO JSON file (repeatable)" in words


@pytest.mark.parametrize("columns", ["60", "80"])
def test_help_breaks_no_name_at_its_hyphen(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["build", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.endswith("-")]
    assert max(len(line) for line in lines if "shardbeam build" not in line) <= int(columns)


def test_help_keeps_tables_and_paragraphs_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    row = "  diff      compare two datasets: examples added, removed, moved and changed,"
    assert f"{row}\n            and how\n  verify    " in capsys.readouterr().out
    assert main(["diff", "--help"]) == 0
    paragraph = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert min(map(len, paragraph[:-1])) > 60


def test_without_arguments_help_is_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("usage: shardbeam")


def test_the_program_reads_its_own_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["shardbeam", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("shardbeam ")


def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", *COCO, "--zz\nzz"]) == 2
    assert capsys.readouterr() == ("", "shardbeam: error: unknown flag --zz\\nzz\n")


def replace_run(
    monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[[BuildArguments], int]
) -> None:
    monkeypatch.setattr(shardbeam.pipelines.cli.run, name, run)


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_is_the_runs(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(arguments: BuildArguments) -> int:
        seen.append(arguments)
        return code

    replace_run(monkeypatch, "run_build", run)
    assert main(["build", *COCO]) == code
    assert isinstance(seen[0].config.splits, dict)
    assert seen[0].config.splits["train"] == CocoFormat(
        format="coco", images="i", annotations=["a.json"]
    )


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError(uri="a.json", place="line 3", problem="cut off"), 1, "a.json: line 3: cut off"),
        (FormatError("format 'x:Y' is none"), 2, "format 'x:Y' is none"),
        (UsageError("o: not empty"), 2, "o: not empty"),
        (ConfigError(origin="config", path=("name",), problem="no"), 2, "config: name: no"),
        (InputError(uri="\x1b[2J", problem="two\nlines"), 1, r"\x1b[2J: two\nlines"),
    ],
)
def test_known_errors_are_one_line(
    error: Exception,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: BuildArguments) -> int:
        raise error

    replace_run(monkeypatch, "run_build", fail)
    assert main(["build", *COCO]) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"shardbeam: error: {message}\n")

    assert main(["build", *COCO, "--json"]) == code
    printed = capsys.readouterr()
    assert printed.err == f"shardbeam: error: {message}\n"
    summary = json.loads(printed.out)
    assert (summary["status"], summary["exit_code"]) == ("failed", code)
    assert summary["message"] == str(error)


def test_what_only_the_formats_know_is_a_config_error_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folders = ["plan", "image-folder", "--images", "i", "--output", "o"]
    assert main([*folders, "--set", "features.drop=[image/hight]"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("shardbeam: error: config: features.drop: unknown key 'image/hight'")
    assert message.count("\n") == 1


def lacks_memory(said: str, *, cause: str) -> bool:
    before, _, after = said.partition("): give it more")
    return before.startswith(
        f"shardbeam: error: out of memory or address space ({cause}"
    ) and after.endswith(
        ", or make it take less with --processes=1 and --memory=100, and run the same command "
        "again\n"
    )


MAP_ERROR = "x.so: failed to map segment from shared object"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MemoryError(), "MemoryError"),
        (OSError(errno.ENOMEM, "Cannot allocate memory", "x.so"), "[Errno 12] Cannot allocate mem"),
        (
            RuntimeError("can't start new thread [while running 'Write/ParDo(X)']"),
            "can't start new",
        ),
        (ImportError(MAP_ERROR), MAP_ERROR),
        (ImportError("x.so: cannot allocate memory in static TLS block"), "x.so: cannot allocate"),
        (MemoryError("2 MB"), "2 MB"),
    ],
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_too_little_memory_is_one_line(
    error: Exception,
    cause: str,
    is_wrapped: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: BuildArguments) -> int:
        if is_wrapped:
            # As runners and worker processes do.
            raise RuntimeError("in a worker") from error
        raise error

    replace_run(monkeypatch, "run_build", fail)
    assert main(["build", *COCO]) == 1
    said = capsys.readouterr().err
    assert lacks_memory(said, cause=cause)
    assert (said.count("\n"), explain_failure(error).args) == (1, (said[18:-1],))


def test_what_follows_from_a_damaged_file_is_no_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: BuildArguments) -> int:
        raise InputError(uri="x", problem="a record is too long") from MemoryError()

    replace_run(monkeypatch, "run_build", fail)
    assert main(["build", *COCO]) == 1
    assert capsys.readouterr().err == "shardbeam: error: x: a record is too long\n"


@pytest.mark.parametrize(
    ("limit_mb", "flags", "cause"),
    [
        # Libraries in C abort there, or say something else.
        (60, (), "this command needs at least "),
        pytest.param(150, (), "this command needs at least ", marks=pytest.mark.slow),
        pytest.param(800, (), "this command needs at least ", marks=pytest.mark.slow),
        pytest.param(
            *(1000, ("--processes=2",), "this command needs at least "), marks=pytest.mark.slow
        ),
        # Too little for the image.
        pytest.param(1500, (), "MemoryError", marks=pytest.mark.slow),
        pytest.param(1500, ("--processes=2",), "MemoryError", marks=pytest.mark.slow),
    ],
)
def test_a_limit_of_addresses(
    limit_mb: int,
    flags: tuple[str, ...],
    cause: str,
    shapes: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    limit = limit_mb * 1_000_000 + (reachable_cpus() - 2) * 16_000_000
    is_read = cause == "MemoryError"
    images = request.getfixturevalue("large") if is_read else shapes / "class_folders"
    words = ["build", "image-folder", "--images", str(images), "--output", str(tmp_path / "out")]
    result = subprocess.run(
        [COMMAND, *words, "--set", "output.num_shards=4", *flags],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert (result.returncode, result.stdout) == (1, "")
    last = result.stderr.splitlines(keepends=True)[-1]
    assert lacks_memory(last, cause=cause)
    assert f"`ulimit -v` {limit // 1024}, " in last
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of one colour, each of which takes more than half a GB."""
    folder = tmp_path_factory.mktemp("large") / "cat"
    folder.mkdir()
    Image.new("RGB", (13_000, 13_000)).save(folder / "0.png", compress_level=1)
    for number in range(1, 4):
        shutil.copy(folder / "0.png", folder / f"{number}.png")
    return folder.parent


def test_what_the_machine_is_to_blame_for_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: BuildArguments) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "out/.staging/p/runs/r/outcome.json")

    replace_run(monkeypatch, "run_build", fail)
    assert main(["build", *COCO]) == 1
    assert capsys.readouterr().err == (
        "shardbeam: error: out/.staging/p/runs/r/outcome.json: Input/output error (EIO); fix it "
        "and run the same command again\n"
    )


def test_unknown_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: BuildArguments) -> int:
        raise ZeroDivisionError

    replace_run(monkeypatch, "run_build", fail)
    with pytest.raises(ZeroDivisionError):
        main(["build", *COCO])


def test_the_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--images", "2", "--workers", "1", "--width", "64", "--height", "64"]
    line = ["sample", "shapes", *size, "--output", str(tmp_path / "sample")]
    assert main(line) == 0
    assert capsys.readouterr().out.startswith("wrote 2 images with ")
    assert len(list((tmp_path / "sample" / "images").iterdir())) == 2
    # It overwrites nothing.
    assert main(line) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"shardbeam: error: {tmp_path / 'sample'} is not empty")
