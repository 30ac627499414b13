"""The lock files agree: a package has the same version in all of them."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from collections.abc import Mapping, Set

import pytest

from tests.conftest import PROJECT_ROOT

Pins = Mapping[str, Set[str]]


def pins(name: str) -> Pins:
    """Reads a lock file: `{package with its version and marker: its hashes}`."""
    found: dict[str, set[str]] = {}
    for line in (PROJECT_ROOT / name).read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"(\S+==[^\\]+?) *\\", line):
            hashes = found.setdefault(match[1], set())
        elif match := re.fullmatch(r" +--hash=(\S+)( \\)?", line):
            hashes.add(match[1])
        else:
            pytest.fail(f"{name}: {line}")
    return found


def versions(locked: Pins) -> Mapping[tuple[str, str], Set[str]]:
    """Returns `{(package, version): hashes}`, without the markers, which may differ."""
    split = {pin.partition(" ;")[0].partition("==")[::2]: pin for pin in locked}
    return {(name, version): locked[pin] for (name, version), pin in split.items()}


@pytest.mark.parametrize("name", ["requirements-base.lock", "requirements-worker.lock"])
def test_a_smaller_lock_file_is_a_part_of_the_whole(name: str) -> None:
    whole, part = versions(pins("requirements.lock")), versions(pins(name))
    assert len(part) > 50
    assert {pin: hashes for pin, hashes in part.items() if whole.get(pin) != hashes} == {}


@pytest.mark.parametrize(
    ("name", "needed", "other", "common"),
    [
        ("s3fs", "s3fs", "-worker", "fsspec"),
        ("adlfs", "adlfs", "-worker", "fsspec"),
        ("docs", "mkdocs-material", "", "jinja2"),
    ],
)
def test_a_lock_file_for_one_use_agrees_with_the_others(
    name: str, needed: str, other: str, common: str
) -> None:
    locked = versions(pins(f"requirements{other}.lock"))
    added = versions(pins(f"requirements-{name}.lock"))
    assert needed in {package for package, _ in added}
    shared = {package for package, _ in locked} & {package for package, _ in added}
    assert common in shared
    assert {pin: hashes for pin, hashes in added.items() if pin[0] in shared} == {
        pin: hashes for pin, hashes in locked.items() if pin[0] in shared
    }


def test_the_demo_needs_neither_tensorflow_nor_the_tools_of_the_tests() -> None:
    locked = {name for name, _ in versions(pins("requirements-base.lock"))}
    requirements = importlib.metadata.requires("shardbeam") or []
    needed = {re.split(r"[^\w-]", text)[0] for text in requirements if "extra ==" not in text}
    assert needed <= locked
    assert locked.isdisjoint({"tensorflow", "pytest", "google-apitools", "tensorflow-datasets"})


def test_the_image_builds_what_has_no_wheel_with_the_locked_setuptools() -> None:
    """On Python before 3.13 that is google-apitools."""
    steps = (PROJECT_ROOT / "Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install [^&|;]*", steps)
    assert len(installs) == 2
    assert all("--no-build-isolation" in install for install in installs)
    assert "for name in setuptools worker" in steps
    command = re.search(r"sed -n '[^']+' requirements-worker\.lock", steps)
    assert command is not None
    lines = subprocess.check_output(["sh", "-c", command[0]], cwd=PROJECT_ROOT, text=True)
    locked = pins("requirements-worker.lock")
    (pin,) = [pin for pin in locked if pin.startswith("setuptools==")]
    assert lines.splitlines()[0].startswith(pin)
    assert set(re.findall(r"--hash=(\S+)", lines)) == locked[pin]
