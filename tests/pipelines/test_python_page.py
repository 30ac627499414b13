"""docs/python.md: each of its programs runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT_ROOT
from tests.support.archive_files import write_files
from tests.support.dataset import TIMEOUT_S
from tests.support.image_makers import plain_jpeg

PAGE = (PROJECT_ROOT / "docs" / "python.md").read_text()
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
# A program like Airflow: its decorators call what they decorate.
AIRFLOW = """\
def task(**options):
    return lambda function: function


def dag(**options):
    return lambda function: function
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
    "In a thread": ["{folder}/out/cats 2", "{folder}/out/dogs 2"],
    "In an Airflow task": [],
    "Your own steps before ours": ["2 1"],
    "Shards in your own pipeline": [
        "{folder}/shards/pets.tfrecord-00000-of-00002",
        "{folder}/shards/pets.tfrecord-00001-of-00002",
    ],
}


def test_every_chapter_with_a_program_is_run() -> None:
    assert list(SNIPPETS) == list(PRINTED)
    assert PAGE.count("```python") == len(PRINTED)


@pytest.mark.parametrize("chapter", PRINTED)
def test_it_runs(chapter: str, tmp_path: Path) -> None:
    write_files(tmp_path / "photos", IMAGES)
    for name, kind in (("cats", "cat"), ("dogs", "dog")):
        chosen = {path: data for path, data in IMAGES.items() if path.startswith(kind)}
        write_files(tmp_path / f"photos-{name}", chosen)
    (tmp_path / "pets.yaml").write_text(CONFIG)
    (tmp_path / "pets.csv").write_text(TABLE)
    write_files(tmp_path / "lib" / "airflow", {"__init__.py": b"", "sdk.py": AIRFLOW.encode()})
    (tmp_path / "snippet.txt").write_text(SNIPPETS[chapter])
    script = tmp_path / "script.py"
    script.write_text(NOTEBOOK if chapter == "In a notebook" else SNIPPETS[chapter])
    ended = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == sorted(
        line.format(folder=tmp_path) for line in PRINTED[chapter]
    )
    assert (tmp_path / "pets" / "dataset_info.json").exists() == (
        chapter in ("In a program", "In an Airflow task")
    )
