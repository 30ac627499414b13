"""The installed package is one package, whatever it is built from."""

from __future__ import annotations

import email
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import types
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import grimp
import pytest

import shardbeam
import shardbeam.transforms
from shardbeam.configs.load import describe_ready_config, ready_configs
from shardbeam.transforms.formats.base import built_in_formats
from tests.conftest import PROJECT_ROOT
from tests.support.dataset import run

FOLDERS = ("configs", "pipelines", "readers", "transforms")
SHIPPED = ("LICENSE", "README.md", "pyproject.toml", "setup.py")


def _copy(folder: Path) -> None:
    for name in SHIPPED:
        shutil.copy(PROJECT_ROOT / name, folder)
    for name in (*FOLDERS, "shardbeam"):
        shutil.copytree(
            PROJECT_ROOT / name,
            folder / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


def checkout(folder: Path) -> None:
    """A clone, with links."""
    _copy(folder)
    assert (folder / "shardbeam" / "configs").is_symlink()


def source_zip(folder: Path) -> None:
    """A zip of the source, unpacked: each link is a small file with its target's name."""
    _copy(folder)
    for name in FOLDERS:
        (folder / "shardbeam" / name).unlink()
        (folder / "shardbeam" / name).write_text(f"../{name}")


def no_links(folder: Path) -> None:
    """An unpacked sdist."""
    _copy(folder)
    for name in FOLDERS:
        (folder / "shardbeam" / name).unlink()


def make_wheel(make: Callable[[Path], None], *, folder: Path) -> Path:
    source = folder / "source"
    source.mkdir()
    make(source)
    command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(
        [sys.executable, *command, str(source)], check=True, capture_output=True, text=True
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.parametrize(
    "make", [checkout, no_links, pytest.param(source_zip, marks=pytest.mark.slow)]
)
def test_the_wheel_holds_one_package(make: Callable[[Path], None], tmp_path: Path) -> None:
    wheel = make_wheel(make, folder=tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        (info,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(info))
    classifiers = metadata.get_all("Classifier") or []
    minors = [name[-2:] for name in classifiers if "Python :: 3." in name]
    assert f">=3.{minors[0]}" in metadata["Requires-Python"]
    assert f"<3.{int(minors[-1]) + 1}" in metadata["Requires-Python"]
    assert "tfrecord" in metadata["Keywords"].split(",")
    expected = {"shardbeam/__init__.py", "shardbeam/__main__.py", "shardbeam/py.typed"}
    for folder in FOLDERS:
        for suffix in ("py", "yaml", "proto", "pyi", "css", "j2", "js"):
            expected |= {
                f"shardbeam/{path.relative_to(PROJECT_ROOT).as_posix()}"
                for path in (PROJECT_ROOT / folder).rglob(f"*.{suffix}")
            }
    assert files == expected


@pytest.mark.slow
def test_a_typed_program_finds_all_types_in_the_wheel(tmp_path: Path) -> None:
    """The wheel is in an environment of its own; only its libraries come from this one."""
    program = PROJECT_ROOT / "tests" / "support" / "typed_program.py"
    used = set(re.findall(r"\bshardbeam\.(\w+)", program.read_text(encoding="utf-8")))
    assert used == set(shardbeam.__all__)
    shutil.copy(program, tmp_path)
    wheel = make_wheel(checkout, folder=tmp_path)
    venv.create(tmp_path / "venv")
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    python = tmp_path / "venv" / "bin" / "python"
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)),
            *("--cache-dir", str(tmp_path / "cache"), program.name),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.startswith("Success: no issues found in 1 source file"), result.stdout


@pytest.mark.parametrize("package", [shardbeam, shardbeam.transforms])
def test_the_public_names(package: types.ModuleType) -> None:
    assert dir(package) == sorted(package.__all__)
    for name in package.__all__:
        assert f"- `{name}`: " in str(package.__doc__)
        if name != "load_dataset":  # TensorFlow is kept out of this process.
            assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match=f"{package.__name__!r} has no attribute 'nothing'"):
        _ = package.nothing


def test_stages_do_not_import_each_other() -> None:
    graph = grimp.build_graph("shardbeam", cache_dir=None)
    stages = {
        module
        for module in graph.find_children("shardbeam.transforms")
        if not graph.find_children(module)
    }
    assert "shardbeam.transforms.list_images" in stages
    for stage in stages:
        # Beam's transform of that name is a whole flow.
        steps = ("take_records", "join_annotations", "write_shards")
        flow = {f"shardbeam.transforms.{step}" for step in steps}
        known = flow if stage.endswith("write_to_tfrecord") else set()
        assert graph.find_modules_directly_imported_by(stage) & stages == known, stage


def test_docstrings_name_modules_that_exist() -> None:
    packages = {
        folder.name for folder in (PROJECT_ROOT / "transforms").iterdir() if folder.is_dir()
    }
    named = re.compile(rf"`((?:{'|'.join(sorted(packages))})(?:\.[a-z_]+)+)(?:\.[A-Z]\w*)?`")
    gone = []
    for top in ("configs", "transforms", "readers", "pipelines"):
        for file in (PROJECT_ROOT / top).rglob("*.py"):
            for name in named.findall(file.read_text()):
                path = PROJECT_ROOT / "transforms" / name.replace(".", "/")
                # The last part may be a function.
                is_there = any(
                    each.is_dir() or each.with_suffix(".py").is_file()
                    for each in (path, *([path.parent] if name.count(".") > 1 else []))
                )
                if not is_there and not name.endswith(".parquet"):
                    gone.append(f"{file.relative_to(PROJECT_ROOT)}: {name}")
    assert not gone


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = "import sys, shardbeam; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    ours = {name for name in result.stdout.split() if name.startswith("shardbeam")}
    assert ours == {"shardbeam"}
    assert {"apache_beam", "tensorflow", "numpy"}.isdisjoint(result.stdout.split())


def test_commands_import_nothing_that_only_dataflow_needs() -> None:
    program = "import sys; from shardbeam.pipelines.commands import convert, stats, verify; "
    result = subprocess.run(
        [sys.executable, "-c", f"{program}print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "shardbeam.pipelines.cli.shard_job" in result.stdout.split()
    assert "shardbeam.pipelines.runners.dataflow" not in result.stdout.split()


def test_the_module_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "shardbeam", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"shardbeam {importlib.metadata.version('shardbeam')}\n"


def test_formats_and_ready_configs_have_different_names() -> None:
    formats = {name.replace("-", "_") for name in built_in_formats()}
    assert formats.isdisjoint(ready_configs())


@pytest.mark.parametrize("name", ready_configs())
def test_ready_configs_are_listed_and_found_by_name(name: str) -> None:
    assert name in run("formats").stdout
    described = describe_ready_config(ready_configs()[name])
    assert described.endswith((".", "file."))
    result = run("plan", name, "--set", "name=7")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("shardbeam: error: --set: name: expected a name")


def test_a_file_goes_before_a_format_and_a_ready_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("coco", "coco2017"):
        (tmp_path / name).write_text("nothing: true\n")
        result = run("plan", name, exit_code=2)
        assert result.stderr.startswith(f"shardbeam: error: {name}: nothing: unknown key")
