"""File names are read as UTF-8, or the command ends with an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dataset import COMMAND, TIMEOUT_S, coco_words
from tests.support.making import draw

LATIN = "en_US.ISO-8859-1"
# Python's own: the C locale without what Python does to it.
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture(scope="module")
def latin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a locale of ISO-8859-1, which is made for the test."""
    folder = tmp_path_factory.mktemp("locales")
    localedef = shutil.which("localedef")
    if localedef is None:
        pytest.skip("localedef is not here")
    words = [localedef, "-i", "en_US", "-f", "ISO-8859-1", str(folder / LATIN)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    if not (folder / LATIN).is_dir():
        pytest.skip(f"localedef makes no locale; is the package `locales` here? {made.stderr}")
    return {"LOCPATH": str(folder), "LC_ALL": LATIN}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    draw(tmp_path / "images", {"width": 16, "height": 16}, "café/naïve.jpg")
    return tmp_path / "images"


def run_in(locale: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
    return subprocess.run(
        words, env={**environment, **locale}, capture_output=True, timeout=TIMEOUT_S, check=False
    )


# All commands start in the same function, `main`.
COMMANDS = [
    "build image-folder --images {images} --output {out}",
    "show {images}",
    "sample shapes --images 1 --output {out}",
]


def check_refused(ended: subprocess.CompletedProcess[bytes], *, encoding: str, out: Path) -> None:
    assert (ended.returncode, ended.stdout) == (2, b""), ended
    assert ended.stderr.count(b"\n") == 1
    assert f"Python reads them as {encoding} ".encode() in ended.stderr
    assert b"set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8" in ended.stderr
    assert not out.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_another_encoding_is_refused(
    command: str, latin: dict[str, str], images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = command.format(images=images, out=out).split()
    check_refused(run_in(latin, COMMAND, *words), encoding="iso8859-1", out=out)


def test_ascii_is_refused(shapes: Path, tmp_path: Path) -> None:
    ended = run_in(ASCII, COMMAND, *coco_words(shapes, tmp_path / "out"))
    check_refused(ended, encoding="ascii", out=tmp_path / "out")


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_what_touches_no_file_works(word: str) -> None:
    assert run_in(ASCII, COMMAND, word).returncode == 0


@pytest.mark.slow
def test_the_fix_helps(latin: dict[str, str], images: Path, tmp_path: Path) -> None:
    words = ["build", "image-folder", "--images", str(images), "--output", str(tmp_path / "out")]
    ended = run_in({**latin, "PYTHONUTF8": "1"}, COMMAND, *words)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "labels.txt").read_text(encoding="utf-8") == "café\n"


# As a Beam worker does, and a program that uses the library.
PROGRAM = """
import sys
from shardbeam import InputError
from shardbeam.transforms.storage.find import storage_for
try:
    print([file.path for file in storage_for(sys.argv[1]).list(sys.argv[1])])
except InputError as error:
    sys.exit(f"InputError: {error}")
"""


def test_programs_are_told(images: Path) -> None:
    ended = run_in(ASCII, sys.executable, "-c", PROGRAM, images)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.startswith(b"InputError: file names: Python reads them as ascii ")
