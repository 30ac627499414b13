"""Whatever is in `statistics.json`: it is shown, or one line names the file. No traceback."""

from __future__ import annotations

import copy
import functools
import json
import operator
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builds import Build
from tests.support.dataset import run

LARGE = 2**63 - 1
KEYS = ("", "x", "²", "-1", "07", "9" * 5000, "\n\x1b[2J</script>", "dark_picture", "0")
VALUES: tuple[object, ...] = (
    *(-1, 0, 1, LARGE, LARGE + 1, 10**400, 0.5, True, None, "x", [], [1], [3, 2, 1], {}),
    *({"x": 1}, {"x": {"y": 1}}, {"9" * 5000: 1}),
)


@pytest.fixture(scope="module")
def dataset(planted: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "out"
    shutil.copytree(planted.output, folder)
    return folder


@pytest.fixture(scope="module")
def document(planted: Build) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((planted.output / "statistics.json").read_bytes())
    return found


def check(dataset: Path, document: object) -> set[int]:
    """Runs the commands that read the file, and returns their exit codes."""
    path = dataset / "statistics.json"
    path.write_text(json.dumps(document))
    page = str(dataset.parent / "page.html")
    exit_codes = set()
    for words in (
        ["stats", str(dataset)],
        ["show", str(dataset), "--findings"],
        ["report", str(dataset), "--examples", "1", "--output", page, "--overwrite"],
    ):
        exit_code, stdout, stderr = run(*words)
        exit_codes.add(exit_code)
        if exit_code:
            assert (exit_code, stdout, stderr.count("\n")) == (1, "", 1), stderr
            assert stderr.startswith(f"shardbeam: error: {path}: "), stderr
    return exit_codes


def change_numbers(value: Any, number: int) -> Any:  # noqa: ANN401
    """Replaces all numbers."""
    if isinstance(value, dict):
        return {key: change_numbers(each, number) for key, each in value.items()}
    if isinstance(value, str):
        return re.sub(":[0-9]+", f":{number}", value)
    return [number for _ in value] if isinstance(value, list) else number


def change_keys(value: Any) -> Any:  # noqa: ANN401
    """Adds keys to all mappings that have some."""
    if not value or not isinstance(value, dict):
        return value
    changed = {key: change_keys(each) for key, each in value.items()}
    example = next(iter(changed.values()))
    return {**changed, **{key: example for key in KEYS if key not in changed}}


@pytest.mark.parametrize(
    "change",
    [
        lambda value: change_numbers(value, 0),
        lambda value: change_numbers(value, LARGE),
        change_keys,
        lambda value: type(value)(),
    ],
    ids=["zeros", "large numbers", "other keys", "empty"],
)
def test_what_is_possible_is_shown(
    change: Callable[[Any], Any], dataset: Path, document: dict[str, Any]
) -> None:
    changed = copy.deepcopy(document)
    split = changed["splits"]["train"]
    objects = split["images_by_objects"]
    for field in split:
        split[field] = change(split[field])
    if len(split["images_by_objects"]) > len(objects):
        split["images_by_objects"] = objects
    assert check(dataset, changed) == {0}


def list_places(value: object, place: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Yields the place of each value within a value."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, each in items:
        yield (*place, key)
        yield from list_places(each, (*place, key))


@settings(max_examples=10)
@given(data=st.data())
def test_any_change_is_shown_or_refused(
    data: st.DataObject, dataset: Path, document: dict[str, Any]
) -> None:
    changed = copy.deepcopy(document)
    *way, last = data.draw(st.sampled_from(list(list_places(document["splits"]))))
    holder = functools.reduce(operator.getitem, way, changed["splits"])
    if data.draw(st.booleans()) or isinstance(holder, list):
        holder[last] = data.draw(st.sampled_from(VALUES))
    else:
        holder[data.draw(st.sampled_from(KEYS))] = holder.pop(last)
    check(dataset, changed)
