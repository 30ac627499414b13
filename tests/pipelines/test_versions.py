"""Versions of a dataset: names from placeholders, and the pointer to the latest."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardbeam.pipelines.versions
from shardbeam.pipelines.versions import run_date
from shardbeam.transforms.commit.pointer import decode_pointer, read_pointer, write_pointer
from shardbeam.transforms.core.errors import InputError
from tests.support.crash_points import record_states, restore
from tests.support.dataset import Run, Tree, check_whole, read_dataset, read_tree, run

FINGERPRINTED = "{version}-{fingerprint}"


@pytest.fixture
def set_date(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the day of all runs that follow."""

    def set_date(day: str) -> None:
        started = datetime.datetime.fromisoformat(f"{day}T23:59:00+00:00")
        monkeypatch.setattr(shardbeam.pipelines.versions, "run_date", lambda _: run_date(started))

    return set_date


@pytest.fixture
def inputs(shapes: Path, tmp_path: Path) -> Path:
    """Six images of the sample, to be changed."""
    folder = tmp_path / "shapes"
    shutil.copytree(shapes / "annotations", folder / "annotations")
    (folder / "images").mkdir()
    for path in sorted((shapes / "images").iterdir())[:6]:
        shutil.copy2(path, folder / "images")
    path = folder / "annotations" / "instances.json"
    document = json.loads(path.read_bytes())
    names = {path.name for path in (folder / "images").iterdir()}
    document["images"] = [image for image in document["images"] if image["file_name"] in names]
    kept = {image["id"] for image in document["images"]}
    document["annotations"] = [each for each in document["annotations"] if each["image_id"] in kept]
    path.write_text(json.dumps(document))
    return folder


def words(inputs: Path, path: str, *more: str, command: str = "build") -> list[str]:
    root = inputs.parent
    return [
        *(command, "coco", "--images", f"{inputs}/images"),
        *("--annotations", f"{inputs}/annotations/instances.json"),
        *("--output", f"{root}/d/{path}", "--json", *more),
    ]


def latest_flags(inputs: Path) -> tuple[str, ...]:
    return "--set", f"output.latest={inputs.parent}/d/latest"


def build(inputs: Path, path: str, *more: str) -> dict[str, Any]:
    """Builds, and returns the summary."""
    result = run(*words(inputs, path, *more), exit_code=0)
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


def change(inputs: Path) -> None:
    """Changes the inputs, by touching one image."""
    image = next((inputs / "images").iterdir())
    os.utime(image, ns=(0, image.stat().st_mtime_ns + 1_000_000))


def message(result: Run) -> str:
    assert result.exit_code == 2, result.stderr
    return result.stderr.splitlines()[-1].removeprefix("shardbeam: error: ")


def versions(inputs: Path) -> list[str]:
    """Names of the committed versions."""
    root = inputs.parent / "d"
    found = [path.parent for path in root.rglob("dataset_info.json")]
    for folder in found:
        assert check_whole(read_tree(folder))
    return sorted(folder.relative_to(root).as_posix() for folder in found)


def pointed(inputs: Path) -> str:
    """The version that the pointer names, relative to the folder of all."""
    text = (inputs.parent / "d" / "latest").read_text()
    assert text.endswith("\n")
    return Path(text[:-1]).relative_to(inputs.parent / "d").as_posix()


# Placeholders


def test_the_date_is_that_in_utc() -> None:
    west = datetime.timezone(datetime.timedelta(hours=-8))
    assert run_date(datetime.datetime(2025, 1, 31, 17, tzinfo=west)) == "20250201"


def test_the_fingerprint(inputs: Path) -> None:
    def planned(*more: str) -> str:
        result = run(*words(inputs, "{fingerprint}", *more, command="plan"))
        return Path(json.loads(result.stdout)["output"]).name

    first = build(inputs, "{fingerprint}")["output"]
    (name,) = versions(inputs)
    assert re.fullmatch("[0-9a-f]{12}", name)
    assert Path(first).name == planned() == name
    names = {name}
    change(inputs)
    names.add(planned())
    os.utime(inputs / "annotations" / "instances.json")
    names.add(planned())
    quality = ("--set", "image.quality=90")
    names.add(planned(*quality))
    assert len(names) == 4
    # How it runs, and which rejects it tolerates, makes no other dataset.
    flags = ("--threads", "1", "--set", "rejects.max_ratio=0.5", *latest_flags(inputs))
    assert planned(*quality, *flags) in names


# The pointer


def test_the_pointer_is_written_and_moves_on(inputs: Path) -> None:
    flags = (*latest_flags(inputs), "--if-changed")
    summary = build(inputs, FINGERPRINTED, *flags)
    assert summary["latest"] == f"{inputs.parent}/d/latest"
    (first,) = versions(inputs)
    assert pointed(inputs) == first
    before = read_tree(inputs.parent / "d")
    assert build(inputs, FINGERPRINTED, *flags)["current"]
    advice = message(run(*words(inputs, FINGERPRINTED, "--overwrite", *latest_flags(inputs))))
    assert advice.endswith("while it is replaced; choose another version")
    assert read_tree(inputs.parent / "d") == before

    image = next((inputs / "images").iterdir())
    status = image.stat()
    change(inputs)
    assert not build(inputs, FINGERPRINTED, *flags)["current"]
    assert len(versions(inputs)) == 2
    assert pointed(inputs) != first
    # And back: what was built from these inputs is there still.
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    summary = build(inputs, FINGERPRINTED, *flags)
    assert summary["current"]
    assert "latest names this version again" in summary["message"]
    assert pointed(inputs) == first


def test_dates_follow_the_pointer(inputs: Path, set_date: Callable[[str], None]) -> None:
    flags = (*latest_flags(inputs), "--if-changed")
    set_date("2025-01-31")
    build(inputs, "{date}", *flags)
    set_date("2025-02-01")
    summary = build(inputs, "{date}", *flags)
    assert summary["current"]
    assert summary["output"] == f"{inputs.parent}/d/20250131"
    change(inputs)
    assert not build(inputs, "{date}", *flags)["current"]
    assert versions(inputs) == ["20250131", "20250201"]
    assert pointed(inputs) == "20250201"
    # Twice a day is too often for this name.
    change(inputs)
    result = run(*words(inputs, "{date}", *flags))
    assert message(result) == (
        f"{inputs.parent}/d/20250201: holds a committed dataset already; inputs or config have "
        "changed; add --overwrite to replace it, or put {fingerprint} into output.path"
    )


def test_a_missing_pointer_is_repaired(inputs: Path) -> None:
    flags = (*latest_flags(inputs), "--if-changed")
    build(inputs, "{fingerprint}", *flags)
    (name,) = versions(inputs)
    latest = inputs.parent / "d" / "latest"
    for content in (None, "/elsewhere\n", "gs://b/other\n"):
        latest.unlink()
        if content is not None:
            latest.write_text(content)
        assert build(inputs, "{fingerprint}", *flags)["current"]
        assert pointed(inputs) == name


def test_what_a_pointer_names_beside_the_versions_is_not_looked_at(
    inputs: Path, set_date: Callable[[str], None]
) -> None:
    set_date("2025-01-31")
    flags = (*latest_flags(inputs), "--if-changed")
    build(inputs, "{date}", *flags)
    root = inputs.parent / "d"
    # It is as this build would make it, but lies where this config never writes.
    shutil.move(root / "20250131", root / "mine")
    (root / "latest").write_text(f"{root}/mine\n")
    assert not build(inputs, "{date}", *flags)["current"]
    assert pointed(inputs) == "20250131"


def test_what_readers_are_led_to_is_not_replaced(inputs: Path) -> None:
    flags = latest_flags(inputs)
    build(inputs, "{version}", *flags)
    before = read_tree(inputs.parent / "d")
    change(inputs)
    result = run(*words(inputs, "{version}", "--overwrite", *flags))
    assert message(result) == (
        f"{inputs.parent}/d/1.0.0: {inputs.parent}/d/latest leads readers here, and they would see "
        "half a dataset while it is replaced; put {fingerprint} into output.path, or choose "
        "another version"
    )
    assert read_tree(inputs.parent / "d") == before
    build(inputs, "{version}", "--version", "1.0.1", *flags)
    assert pointed(inputs) == "1.0.1"
    # Nobody is led to the old one any more.
    build(inputs, "{version}", "--overwrite", "--set", "image.quality=80", *flags)
    assert pointed(inputs) == "1.0.0"


@pytest.mark.parametrize(
    ("path", "latest", "problem"),
    [
        ("{date}", "d/20250131", "output.latest lies within the folder of a version"),
        ("{date}", "d/20250131/latest", "output.latest lies within the folder of a version"),
        ("plain", "d/plain/latest", "output.latest lies within the folder of a version"),
        ("{date}/x", "d/20250131", "output.latest is a file, but output.path lies below it"),
        ("{date}", "d", "output.latest is a file, but output.path lies below it"),
        ("{date}", "shapes/images/latest", "lies within the input"),
        ("{date}", "shapes/annotations/instances.json", "instances.json itself; choose another"),
        (
            "{date}",
            "shapes/annotations/captions.json",
            "is not a pointer (one line with the absolute path or URI of a dataset's folder)",
        ),
        ("{date}", "shapes/annotations", "holds the input"),
        ("{date}", "folder", "cannot be read: a folder; only regular files are read"),
    ],
)
def test_where_a_pointer_cannot_be(path: str, latest: str, problem: str, inputs: Path) -> None:
    (inputs.parent / "folder").mkdir()
    before = read_tree(inputs.parent)
    setting = f"output.latest={inputs.parent / latest}"
    for command in ("plan", "build") if path == "plain" else ("plan",):
        result = run(*words(inputs, path, "--set", setting, command=command))
        assert problem in message(result)
    assert read_tree(inputs.parent) == before


@pytest.mark.parametrize("output", ["gs://b/out", "gs://b/out/", "gs://b/{date}/"])
def test_a_slash_at_the_end_makes_no_other_folder(output: str, inputs: Path) -> None:
    filled = output.rstrip("/").replace("{date}", "20250131")
    setting = f"output.latest={filled}/latest"
    result = run(*words(inputs, "d", "--output", output, "--set", setting))
    assert "output.latest lies within the folder of a version" in message(result)


def test_a_pointer_beside_a_name_that_only_looks_alike(inputs: Path) -> None:
    latest = ("--set", f"output.latest={inputs.parent}/d/2025013")
    assert run(*words(inputs, "{date}", *latest, command="plan")).exit_code == 0


# Kills, and readers meanwhile


def test_a_run_killed_at_any_moment_of_its_end(inputs: Path) -> None:
    flags = (*latest_flags(inputs), "--if-changed")
    root = inputs.parent / "d"
    with record_states(root) as states:
        build(inputs, "{fingerprint}", *flags)
    (name,) = versions(inputs)
    expected = read_dataset(root / name)
    late = [state for state in states if f"{name}/dataset_info.json" in state]
    unpointed = [state for state in late if "latest" not in state]
    assert len(unpointed) >= 2
    assert any("latest.new" in state for state in unpointed)
    for state in late:
        restore(root, state)
        assert build(inputs, "{fingerprint}", *flags)["current"]
        assert pointed(inputs) == name
        assert read_dataset(root / name) == expected
        # Nothing is left beside the two.
        left = {path.partition("/")[0] for path in read_tree(root)}
        assert left == {name, "latest"}


def test_the_pointer_never_names_half(inputs: Path) -> None:
    flags = latest_flags(inputs)
    root = inputs.parent / "d"
    build(inputs, "{fingerprint}", *flags)
    change(inputs)
    with record_states(root) as states:
        build(inputs, "{fingerprint}", *flags)
    named = []
    for state in states:
        folder = Path(state["latest"].decode().strip()).relative_to(root).as_posix()
        named.append(folder)
        version: Tree = {
            path.removeprefix(f"{folder}/"): data
            for path, data in state.items()
            if path.startswith(f"{folder}/")
        }
        assert check_whole(version)
    assert len(set(named)) == 2
    # It moved once.
    assert len([1 for one, other in itertools.pairwise(named) if one != other]) == 1


# Reading through the pointer


def test_readers_follow_the_pointer(inputs: Path) -> None:
    build(inputs, "{version}/{{date}}", "--version", "2.1.0", *latest_flags(inputs))
    (name,) = versions(inputs)
    assert name == "2.1.0/{date}"
    root = inputs.parent / "d"
    shown = [run("show", f"{root}/{path}", "--limit", "1") for path in ("latest", name)]
    assert shown[0] == shown[1]
    assert shown[0].exit_code == 0
    assert len(shardbeam.open(f"{root}/latest", split="train")) == 6
    # One step, and no further.
    (root / "chain").write_text(f"{root}/latest\n")
    assert run("show", f"{root}/chain").exit_code == 1
    shutil.rmtree(root / name)
    result = run("show", f"{root}/latest")
    assert result.stderr == f"shardbeam: error: {root / name}: nothing is there\n"


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        (b"/a/b\n", "/a/b"),
        (b"/a/b", "/a/b"),
        (b"gs://b/a b\n", "gs://b/a b"),
        ("/ä\n".encode(), "/ä"),
        (b"", None),
        (b"\n", None),
        (b"a/b\n", None),
        (b"/a\n/b\n", None),
        (b"/a\r\n", "/a"),
        (b"/a\0", None),
        (b"/a\x1b[2J\n", None),
        (b"/\xff\n", None),
        (b"/" * 5000, None),
        ((4).to_bytes(8, "little") + b"1234" + b"abcd" + b"5678", None),
    ],
)
def test_what_is_a_pointer(data: bytes, folder: str | None) -> None:
    assert decode_pointer(data) == folder


def test_writing_a_pointer_again_repairs_what_a_kill_has_left(tmp_path: Path) -> None:
    uri = f"{tmp_path}/latest"
    (tmp_path / "latest.new").write_text("/ha")
    write_pointer(uri, folder="/a")
    write_pointer(uri, folder="/b")
    assert read_pointer(uri) == "/b"
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
    (tmp_path / "latest").write_text("{}")
    with pytest.raises(InputError, match=r"latest: is not a pointer"):
        read_pointer(uri)
