"""docs/first-hour.md is so: its commands run, one after the other, and its model learns."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT_ROOT
from tests.support.dataset import run
from tests.support.pages import blocks

PAGE = "docs/first-hour.md"


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
        if program_name == "python":
            # TensorFlow is kept out of this process.
            said["train"] = subprocess.run(
                [sys.executable, *words], check=True, capture_output=True, text=True
            ).stdout
            continue
        assert program_name == "shardbeam"
        result = run(*words)
        assert result.exit_code == 0, (line, result.stderr)
        said[words[0]] = result.stdout + result.stderr
        if words[0] == "init":
            Path("shapes.yaml").write_text(config, encoding="utf-8")
    assert {"sample", "init", "plan", "build", "show", "stats", "train", "verify"} == set(said)

    shown = "\n".join(blocks(PAGE, ""))
    assert said["init"] in shown
    assert re.search(r"^train +640 ", said["plan"], re.MULTILINE)
    assert re.search(r"^validation +160 ", said["plan"], re.MULTILINE)
    # The second time.
    assert "unchanged: " in said["build"]
    match = re.fullmatch(r"(\d+)% of 160 validation images are told right\n", said["train"])
    assert match is not None
    # A guess is right once in four.
    assert int(match[1]) > 60


def test_the_page_is_linked() -> None:
    readme = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({PAGE})" in readme
