"""The commands of docs/guide/first-hour.md run, one after the other, and its model learns."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT_ROOT
from tests.support.dataset import run
from tests.support.pages import blocks

PAGE = "docs/guide/first-hour.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (config,) = blocks(PAGE, "yaml")
    (program,) = blocks(PAGE, "python")
    Path("train.py").write_text(program, encoding="utf-8")
    lines = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    said: dict[str, str] = {}
    for line in lines:
        program_name, *words = shlex.split(line)
        if program_name in ("make", "source", "pip"):
            # The environment is there already.
            continue
        if program_name == "python":
            # TensorFlow is kept out of this process.
            said["train"] = subprocess.run(
                [sys.executable, *words], check=True, capture_output=True, text=True
            ).stdout
            continue
        assert program_name == "shardbeam"
        if words[0] in said:
            # The second build finds a changed photo.
            photo = Path("sample/class_folders/circle/000000000004.jpg")
            os.utime(photo, ns=(0, 0))
            refused = run("build", "shapes.yaml", "--if-changed", exit_code=2)
            assert "inputs or config have changed; add --overwrite" in refused.stderr
        result = run(*words, exit_code=0)
        said[f"{words[0]} again" if words[0] in said else words[0]] = result.stdout + result.stderr
        if words[0] == "init":
            Path("shapes.yaml").write_text(config, encoding="utf-8")
    assert list(said) == [
        *("sample", "init", "plan", "build", "show", "stats", "report", "train"),
        *("build again", "verify"),
    ]

    shown = "\n".join(blocks(PAGE, ""))
    assert said["init"] in shown
    assert re.search(r"^train +640 ", said["plan"], re.MULTILINE)
    assert re.search(r"^validation +160 ", said["plan"], re.MULTILINE)
    # The page explains it.
    assert (
        "of validation (1 of 160 pictures) is in another split, too, such as circle/"
        in said["build"]
    )
    assert "committed: " in said["build again"]
    match = re.fullmatch(
        r"(\d+)% of 160 validation images are classified correctly\n", said["train"]
    )
    assert match is not None
    # A guess is right once in four.
    assert int(match[1]) > 60


def test_the_page_is_linked() -> None:
    readme = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({PAGE})" in readme
