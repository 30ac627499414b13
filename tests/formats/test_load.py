from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageAnnotations
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.load import FormatError, format_names, load_format
from tests.conftest import PROJECT_ROOT

_OWN_FORMAT = """
    from __future__ import annotations

    import dataclasses

    from shardbeam.transforms.formats.base import Format, Kind
    from shardbeam.transforms.core.records import ImageAnnotations


    # A dataclass with postponed annotations needs its module in sys.modules.
    @dataclasses.dataclass
    class Prefixes(Format):
        length: int = 1
        annotations: tuple[str, ...] = ()

        def __post_init__(self) -> None:
            self.kinds = frozenset({Kind.CLASSIFICATION})
            if self.length < 1:
                raise ValueError("length: expected at least 1")

        def annotate_listed(self, key):
            return ImageAnnotations(image_id=key, labels=(key[: self.length],))


    class NoFormat:
        pass


    class NoKinds(Format):
        pass
"""


def _own_file(folder: Path, *, content: str = _OWN_FORMAT, name: str = "own.py") -> Path:
    file = folder / name
    file.write_text(textwrap.dedent(content), encoding="utf-8")
    return file


def _labels(source: Format, key: str) -> tuple[str, ...]:
    found = source.annotate_listed(key)
    assert isinstance(found, ImageAnnotations)
    return found.labels


def test_built_in_formats() -> None:
    assert {"coco", "lvis", "image-folder"} <= set(format_names())
    assert isinstance(load_format(name="coco", settings={"annotations": ["a.json"]}), CocoFormat)
    assert isinstance(load_format(name="image-folder", settings={}), ImageFolderFormat)


def test_settings_reach_the_constructor() -> None:
    source = load_format(name="coco", settings={"annotations": ["a.json", "b.json"]})

    assert list(source.annotation_files()) == ["a.json", "b.json"]


def test_same_name_and_settings_give_the_same_object() -> None:
    first = load_format(name="coco", settings={"annotations": ["a"], "masks": True})
    again = load_format(name="coco", settings={"masks": True, "annotations": ["a"]})
    other = load_format(name="coco", settings={"annotations": ["b"]})

    assert first is again
    assert first is not other


def test_class_of_a_file(tmp_path: Path) -> None:
    name = f"{_own_file(tmp_path)}:Prefixes"

    assert _labels(load_format(name=name, settings={}), "abc.jpg") == ("a",)
    assert _labels(load_format(name=name, settings={"length": 2}), "abc.jpg") == ("ab",)


def test_class_of_a_relative_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own_file(tmp_path, name="relative.py")
    monkeypatch.chdir(tmp_path)

    source = load_format(name="relative.py:Prefixes", settings={})

    assert _labels(source, "abc.jpg") == ("a",)


def test_class_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own_file(tmp_path, name="shardbeam_test_module.py")
    monkeypatch.syspath_prepend(tmp_path)

    source = load_format(name="shardbeam_test_module:Prefixes", settings={"length": 3})

    assert _labels(source, "abc.jpg") == ("abc",)


@pytest.mark.parametrize("name", ["json.py", "transforms.py", "configs.py"])
def test_a_file_hides_no_module_and_is_hidden_by_none(tmp_path: Path, name: str) -> None:
    before = {module: sys.modules.get(module) for module in ("json", "transforms", "configs")}
    path_before = list(sys.path)

    source = load_format(name=f"{_own_file(tmp_path, name=name)}:Prefixes", settings={})

    assert _labels(source, "abc.jpg") == ("a",)
    assert {module: sys.modules.get(module) for module in before} == before
    assert sys.path == path_before


def test_files_of_one_name_are_different_modules(tmp_path: Path) -> None:
    formats = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        file = _own_file(tmp_path / folder)
        formats.append(load_format(name=f"{file}:Prefixes", settings={}))

    assert type(formats[0]) is not type(formats[1])


def test_another_process_loads_it_by_name_and_settings(tmp_path: Path) -> None:
    name = f"{_own_file(tmp_path)}:Prefixes"
    program = (
        "import json, sys\n"
        "from shardbeam.transforms.formats.load import load_format\n"
        "source = load_format(**json.loads(sys.argv[1]))\n"
        "print(*source.annotate_listed('abc.jpg').labels)\n"
    )

    run = subprocess.run(
        [sys.executable, "-c", program, json.dumps({"name": name, "settings": {"length": 2}})],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROJECT_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.stdout, run.stderr) == ("ab\n", "")


def test_threads_share_one_import(tmp_path: Path) -> None:
    slow = "import time\ntime.sleep(0.05)\n" + textwrap.dedent(_OWN_FORMAT)
    slow = slow.replace("from __future__ import annotations\n", "")
    name = f"{_own_file(tmp_path, content=slow)}:Prefixes"
    loaded: list[Format] = []
    threads = [
        threading.Thread(target=lambda: loaded.append(load_format(name=name, settings={})))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(loaded) == 4
    assert len({id(source) for source in loaded}) == 1


# Errors


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coc", r"unknown format 'coc'.*did you mean 'coco'\?"),
        ("imagefolder", r"unknown format.*did you mean 'image-folder'\?"),
        ("own.py", "unknown format.*path/to/file.py:Class"),
        ("", "unknown format ''"),
        ("nowhere/own.py:Prefixes", "nowhere/own.py cannot be imported: .*no such file"),
        ("no_such_package.module:Class", "ModuleNotFoundError: No module named 'no_such_package'"),
        (":Class", "cannot be imported"),
        (
            "shardbeam.transforms.formats.coco:CocoFormta",
            r"has no 'CocoFormta'; did you mean 'CocoFormat'\?",
        ),
        ("shardbeam.transforms.formats.coco:", "has no ''"),
        ("shardbeam.transforms.formats.load:load_format", "load_format is no subclass of .*Format"),
    ],
)
def test_unusable_name(name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as raised:
        load_format(name=name, settings={})

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("class_name", "message"),
    [
        ("Prefix", r"has no 'Prefix'; did you mean 'Prefixes'\?"),
        ("NoFormat", "NoFormat is no subclass"),
        ("NoKinds", "sets no `kinds`"),
    ],
)
def test_unusable_class(tmp_path: Path, class_name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        load_format(name=f"{_own_file(tmp_path)}:{class_name}", settings={})


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("class Prefixes(:\n", "SyntaxError"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise RuntimeError('a\\nb')\n", "RuntimeError: a b"),
        ("\0", "cannot be imported"),
    ],
)
def test_file_that_cannot_be_imported(tmp_path: Path, content: str, cause: str) -> None:
    name = f"{_own_file(tmp_path, content=content)}:Prefixes"

    for _ in range(2):
        with pytest.raises(FormatError, match=cause) as raised:
            load_format(name=name, settings={})

        assert "\n" not in str(raised.value)


def test_mended_file_can_be_loaded(tmp_path: Path) -> None:
    file = _own_file(tmp_path, content="import no_such_package\n")
    with pytest.raises(FormatError):
        load_format(name=f"{file}:Prefixes", settings={})
    _own_file(tmp_path)

    assert isinstance(load_format(name=f"{file}:Prefixes", settings={}), Format)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "ValueError: annotations: expected at least one file"),
        ({"annotations": ["a"], "x": 1}, "unexpected keyword argument 'x'; its settings"),
        ({"annotations": "a.json"}, "TypeError: annotations: expected a list"),
        ({"annotations": []}, "ValueError: annotations: expected at least one file"),
        ({"annotations": [object()]}, "settings: "),
    ],
)
def test_refused_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(FormatError, match=f"format 'coco'.*{message}"):
        load_format(name="coco", settings=settings)


def test_own_class_refuses_its_settings(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="ValueError: length: expected at least 1"):
        load_format(name=f"{_own_file(tmp_path)}:Prefixes", settings={"length": 0})


def test_unusable_input_is_no_format_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load_format(name="image-folder", settings={"classes": str(tmp_path / "classes.txt")})
