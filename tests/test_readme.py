"""What the README says is so: its commands run, its snippets run, its tables are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from shardbeam.configs.keys import keys_of
from shardbeam.configs.schema import Config
from shardbeam.pipelines.cli import main
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.formats.load import built_in_formats
from tests.conftest import PROJECT_ROOT
from tests.support.config_page import PAGE, config_page
from tests.support.pages import blocks, commands

README = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")


def leaf_keys(struct: type[msgspec.Struct]) -> list[str]:
    keys = []
    for name, key in keys_of(struct).items():
        if isinstance(key.type, type) and issubclass(key.type, msgspec.Struct):
            keys += leaf_keys(key.type)
        else:
            keys.append(name)
    return keys


def test_the_config_reference_names_every_key() -> None:
    structs: list[type[msgspec.Struct]] = [Config, *built_in_formats().values()]
    keys = {key for struct in structs for key in leaf_keys(struct)}
    table = "\n".join(line.split("|")[1] for line in README.splitlines() if line.startswith("|"))
    assert sorted(key for key in keys if f"`{key}`" not in table) == []


@pytest.mark.parametrize("codes", [Reason, Exclusion])
def test_every_code_is_named(codes: type[Reason | Exclusion]) -> None:
    assert sorted(code.value for code in codes if f"`{code.value}`" not in README) == []


@pytest.fixture
def data(tmp_path: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder in which the README's paths exist, on the sample."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "annotations").mkdir()
    for split in ("train2017", "val2017"):
        (folder / split).symlink_to(shapes / "images")
        (folder / "annotations" / f"instances_{split}.json").symlink_to(
            shapes / "annotations" / "instances.json"
        )
    (folder / "flowers").symlink_to(shapes / "class_folders")
    return folder


@pytest.mark.usefixtures("data")
def test_the_commands_run() -> None:
    shown = commands("README.md")
    assert [command[1:3] for command in shown] == [
        ["build", "coco"],
        ["build", "image-folder"],
        ["init", "data/flowers"],
        ["show", "data/tfrecords/coco"],
        ["show", "data/tfrecords/coco"],
        ["stats", "data/tfrecords/coco"],
        ["report", "data/tfrecords/coco"],
        ["verify", "data/tfrecords/coco"],
    ]
    for command in shown:
        assert main(command[1:]) == 0


@pytest.mark.usefixtures("data")
def test_the_config_runs() -> None:
    (config,) = blocks("README.md", "yaml")
    Path("coco.yaml").write_text(config, encoding="utf-8")
    assert main(["plan", "coco.yaml"]) == 0
    assert main(["build", "coco.yaml"]) == 0


def test_the_snippets_run(tmp_path: Path, shapes: Path) -> None:
    """With what `make demo` writes; TensorFlow is kept out of this process."""
    snippets = blocks("README.md", "python")
    assert len(snippets) == 3
    build = ["build", "coco", "--images", str(shapes / "images"), "--name", "shapes"]
    annotations = str(shapes / "annotations" / "instances.json")
    output = str(tmp_path / "demo" / "coco")
    assert main([*build, "--annotations", annotations, "--output", output]) == 0
    printed = []
    for snippet in snippets:
        if "tensorflow_datasets" in snippet and sys.version_info < (3, 11):
            continue
        run = subprocess.run(
            [sys.executable, "-c", snippet],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        printed.append(run.stdout)
    assert all("(120, 160, 3)" in text for text in printed)
    assert len(printed) == 3 - (sys.version_info < (3, 11))


def test_the_makefile_runs_the_documented_commands() -> None:
    makefile = (PROJECT_ROOT / "Makefile").read_text(encoding="utf-8")
    for command in re.findall(r"^make (\w+)", "\n".join(blocks("README.md", "sh")), re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command
    assert "make test" in (PROJECT_ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_config_page_is_that_of_the_schema() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_page(), "run `make config-page`"
