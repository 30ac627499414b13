"""Another process converts images whose decoders hold the interpreter, with equal results."""

from __future__ import annotations

import pytest

from shardbeam.configs.schema import ImageConfig, ResizeConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.images import check
from shardbeam.transforms.images.check import StoredImage, check_image
from tests.support.image_makers import photograph, save
from tests.support.processes import worker_processes

PICTURES = {kind: save(photograph(), kind) for kind in ("JPEG2000", "AVIF")}
# The placement of the padded picture comes back, too.
SETTINGS = ImageConfig(resize=ResizeConfig(width=20, height=20))


def convert(data: bytes) -> StoredImage | str:
    try:
        return check_image(data, name="", settings=SETTINGS, memory=MemoryBudget(1))
    except RejectedError as error:
        return str(error)


@pytest.fixture
def files() -> dict[bytes, StoredImage | str]:
    """Files with the result of converting them in this process."""
    files = {data[: len(data) // part] for data in PICTURES.values() for part in (1, 2)}
    made = {data: convert(data) for data in files}
    assert worker_processes() == []
    return made


@pytest.fixture(autouse=True)
def apart(files: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_MOST_PIXELS_HERE", dict.fromkeys(check._MOST_PIXELS_HERE, 1))


def test_the_same_comes_of_them_in_one_other_process(
    files: dict[bytes, StoredImage | str],
) -> None:
    assert {data: convert(data) for data in files} == files
    assert len(worker_processes()) == 1


def test_other_formats_stay_here() -> None:
    assert isinstance(convert(save(photograph(), "WEBP")), StoredImage)
    assert worker_processes() == []


def test_an_image_is_converted_here_when_the_other_process_is_killed(
    files: dict[bytes, StoredImage | str],
) -> None:
    for data in PICTURES.values():
        convert(data)
        (process,) = worker_processes()
        process.kill()
        assert convert(data) == files[data]
    assert worker_processes() == []


def test_an_image_is_converted_here_where_no_process_starts(
    files: dict[bytes, StoredImage | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(check, "Worker", fail)
    assert {data: convert(data) for data in files} == files
