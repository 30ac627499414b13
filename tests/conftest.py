"""Fixtures for all tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from apache_beam import DoFn
from apache_beam.runners.worker import statecache
from apache_beam.transforms import userstate
from hypothesis import settings

from shardbeam.pipelines.commands.sample import write_shapes
from shardbeam.transforms.core.garbage import without_collector

PROJECT_ROOT = Path(__file__).parents[1]
# The real samples, if they are here.
SHARED_DATA = Path(os.environ.get("SHARDBEAM_DATA", PROJECT_ROOT.parent / "shared" / "data"))
NO_SHARED_DATA = "the real samples (SHARDBEAM_DATA, or ../shared/data) are not here"


# The same examples every time, whatever the machine is busy with; `make fuzz` is for new ones.
settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end, so nothing looks through them for garbage."""
    with without_collector():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _no_syncs() -> Iterator[None]:
    """Builds in the tests' own processes do not wait for the disk: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _specs_once() -> Iterator[None]:
    """Beam looks through a DoFn's methods eight times a step: a third of what a small build takes.

    What it finds depends on the class alone, so that here it looks once.
    """
    found: dict[type, object] = {}
    look = userstate.get_dofn_specs

    def look_once(dofn: DoFn) -> object:
        if type(dofn) not in found:
            found[type(dofn)] = look(dofn)
        return found[type(dofn)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(userstate, "get_dofn_specs", look_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_sizes() -> Iterator[None]:
    """Beam looks through all modules whenever a step reads a side input, to size its cache of them.

    That is a tenth of what a small build takes, and here no cache comes near its limit.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statecache, "get_deep_size", lambda *_: 1)
        yield


@pytest.fixture
def deep_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder `a` in the current one, for thousands of nested folders: pytest cannot remove these.

    It is removed after the test, also if that fails.
    """
    monkeypatch.chdir(tmp_path)
    yield Path("a")
    subprocess.run(["rm", "-rf", tmp_path / "a"], check=True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real samples, in `SHARDBEAM_DATA` or beside the project; without them, skips the test."""
    if not SHARED_DATA.is_dir():
        pytest.skip(NO_SHARED_DATA)
    return SHARED_DATA


@pytest.fixture(scope="session")
def find_shared_data(request: pytest.FixtureRequest) -> Callable[[], Path]:
    """Returns `shared_data` when it is called, so that only tests that call it are skipped."""
    return lambda: request.getfixturevalue("shared_data")


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample dataset with 40 small images, to be read only."""
    folder = tmp_path_factory.mktemp("sample") / "shapes"
    write_shapes(output=folder, images=40, seed=0, width=160, height=120, workers=1)
    return folder
