from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageAnnotations
from shardbeam.transforms.formats.base import Format, FormatError, built_in_formats, find_format
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.join.sources import Source
from tests.conftest import PROJECT_ROOT
from tests.support.making import make_format

_OWN_FORMAT = """
    from __future__ import annotations

    from shardbeam.transforms.formats.base import Format, Kind
    from shardbeam.transforms.core.records import ImageAnnotations


    class Prefixes(Format):
        kinds = frozenset({Kind.CLASSIFICATION})
        length: int = 1

        def __post_init__(self) -> None:
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
    assert {"coco", "lvis", "image-folder"} <= set(built_in_formats())
    assert find_format("coco") is CocoFormat


def test_a_source_is_sent_by_name_and_keys() -> None:
    source = Source("train", make_format("coco", images="i", annotations=["a"], _masks=True))

    first, again = (pickle.loads(pickle.dumps(source)) for _ in range(2))

    assert first == source
    # A process keeps what a format has read or worked out only once.
    assert first.format is again.format


def test_class_of_a_relative_file_and_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own_file(tmp_path, name="shardbeam_test_module.py")
    monkeypatch.chdir(tmp_path)
    assert _labels(make_format("shardbeam_test_module.py:Prefixes"), "abc.jpg") == ("a",)
    monkeypatch.syspath_prepend(tmp_path)
    source = make_format("shardbeam_test_module:Prefixes", length=3)
    assert _labels(source, "abc.jpg") == ("abc",)


@pytest.mark.parametrize("name", ["json.py", "transforms.py", "configs.py"])
def test_a_file_hides_no_module_and_is_hidden_by_none(tmp_path: Path, name: str) -> None:
    before = {module: sys.modules.get(module) for module in ("json", "transforms", "configs")}
    path_before = list(sys.path)

    source_name = f"{_own_file(tmp_path, name=name)}:Prefixes"
    source = make_format(source_name)

    assert _labels(source, "abc.jpg") == ("a",)
    assert _labels(make_format(source_name, length=2), "abc.jpg") == ("ab",)
    assert {module: sys.modules.get(module) for module in before} == before
    assert sys.path == path_before


def test_files_of_one_name_are_different_modules(tmp_path: Path) -> None:
    formats = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        file = _own_file(tmp_path / folder)
        formats.append(make_format(f"{file}:Prefixes"))

    assert type(formats[0]) is not type(formats[1])


def test_another_process_loads_it_by_name_and_keys(tmp_path: Path) -> None:
    name = f"{_own_file(tmp_path)}:Prefixes"
    sent = pickle.dumps(Source("train", make_format(name, length=2)))
    program = (
        "import pickle, sys\n"
        "source = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "print(*source.format.annotate_listed('abc.jpg').labels)\n"
    )

    run = subprocess.run(
        [sys.executable, "-c", program, sent.hex()],
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
    loaded: list[type[Format]] = []
    threads = [threading.Thread(target=lambda: loaded.append(find_format(name))) for _ in range(4)]
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
        ("nowhere/own.py:Prefixes", "nowhere/own.py cannot be imported: .*no such file"),
        ("no_such_package.module:Class", "ModuleNotFoundError: No module named 'no_such_package'"),
        (":Class", "cannot be imported"),
        (
            "shardbeam.transforms.formats.coco.coco:CocoFormta",
            r"has no 'CocoFormta'; did you mean 'CocoFormat'\?",
        ),
        ("shardbeam.transforms.formats.coco.coco:", "has no ''"),
        (
            "shardbeam.transforms.formats.base:find_format",
            "find_format is not a subclass of .*Format",
        ),
    ],
)
def test_unusable_name(name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as raised:
        find_format(name)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("class_name", "message"),
    [
        ("Prefix", r"has no 'Prefix'; did you mean 'Prefixes'\?"),
        ("NoFormat", "NoFormat is not a subclass"),
        ("NoKinds", "sets no `kinds`"),
    ],
)
def test_unusable_class(tmp_path: Path, class_name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        find_format(f"{_own_file(tmp_path)}:{class_name}")


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
            find_format(name)

        assert "\n" not in str(raised.value)


def test_corrected_file_can_be_loaded(tmp_path: Path) -> None:
    file = _own_file(tmp_path, content="import no_such_package\n")
    with pytest.raises(FormatError):
        find_format(f"{file}:Prefixes")
    _own_file(tmp_path)

    assert issubclass(find_format(f"{file}:Prefixes"), Format)


def test_an_own_class_refuses_its_keys(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="length: expected at least 1"):
        make_format(f"{_own_file(tmp_path)}:Prefixes", length=0)
    with pytest.raises(Problem, match="length: expected int, got 'a'"):
        make_format(f"{_own_file(tmp_path)}:Prefixes", length="a")
    with pytest.raises(Problem, match="lenght: unknown key; did you mean length"):
        make_format(f"{_own_file(tmp_path)}:Prefixes", lenght=1)


def test_input_is_read_when_the_format_is_resolved(tmp_path: Path) -> None:
    made = make_format("image-folder", images="i", classes=str(tmp_path / "classes.txt"))

    with pytest.raises(InputError, match="there is no such file"):
        made.resolve()
