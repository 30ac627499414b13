"""docs/reference/python.md: each of its programs runs as it stands.

One process runs them one after the other, because most of their time is that of the imports.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT_ROOT
from tests.support.archive_files import write_files
from tests.support.dataset import TIMEOUT_S
from tests.support.image_makers import plain_jpeg

PAGE = (PROJECT_ROOT / "docs" / "reference" / "python.md").read_text()
SNIPPETS = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", PAGE, re.M | re.S))

CONFIG = """\
name: pets
source: {format: image-folder, images: photos}
output: {path: pets}
"""
TABLE = "file,class,split\ncat/1.jpg,cat,train\ndog/2.jpg,dog,train\ndog/4.jpg,dog,test\n"
IMAGES = {
    "cat/1.jpg": plain_jpeg(),
    "cat/3.jpg": plain_jpeg((20, 30)),
    "dog/2.jpg": plain_jpeg((40, 30)),
    "dog/4.jpg": plain_jpeg((40, 20)),
}
# Runs the program in each folder; what it prints goes into a file beside it.
ONE_BY_ONE = """
import contextlib, os, runpy, sys, traceback

for folder in sys.argv[1:]:
    os.chdir(folder)
    with open("printed.txt", "w") as file, contextlib.redirect_stdout(file):
        try:
            runpy.run_path("script.py", run_name="__main__")
        except BaseException:
            traceback.print_exc(file=file)
"""
# A notebook runs cells inside an event loop, and shows the value of the last line.
NOTEBOOK = """
import asyncio

async def run():
    *lines, last = open("snippet.txt").read().strip().split("\\n")
    scope = {}
    exec("\\n".join(lines), scope)
    print(eval(last, scope))

asyncio.run(run())
"""
PRINTED = {
    "In a program": ["4 images for {folder}/pets", "4 images in {folder}/pets"],
    "In a notebook": ["{{'train': 3, 'validation': 1}}"],
    "Your own steps before ours": ["2 1"],
    "Shards in your own pipeline": [
        "{folder}/shards/pets.tfrecord-00000-of-00002",
        "{folder}/shards/pets.tfrecord-00001-of-00002",
    ],
}


def test_every_chapter_with_a_program_is_run() -> None:
    assert list(SNIPPETS) == list(PRINTED)
    assert PAGE.count("```python") == len(PRINTED)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each chapter, in which its program has run."""
    root = tmp_path_factory.mktemp("python")
    folders = {chapter: root / str(number) for number, chapter in enumerate(PRINTED)}
    for chapter, folder in folders.items():
        prepare(folder, chapter=chapter)
    subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *folders.values()],
        cwd=root,
        timeout=TIMEOUT_S,
        check=True,
    )
    return folders


def prepare(folder: Path, *, chapter: str) -> None:
    write_files(folder / "photos", IMAGES)
    (folder / "pets.yaml").write_text(CONFIG)
    (folder / "pets.csv").write_text(TABLE)
    (folder / "snippet.txt").write_text(SNIPPETS[chapter])
    program = NOTEBOOK if chapter == "In a notebook" else SNIPPETS[chapter]
    (folder / "script.py").write_text(program)


@pytest.mark.parametrize("chapter", PRINTED)
def test_it_runs(chapter: str, folders: dict[str, Path]) -> None:
    folder = folders[chapter]
    assert sorted((folder / "printed.txt").read_text().splitlines()) == sorted(
        line.format(folder=folder) for line in PRINTED[chapter]
    )
    assert (folder / "pets" / "dataset_info.json").exists() == (chapter == "In a program")
