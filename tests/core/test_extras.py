"""Commands that install what an extra needs."""

from __future__ import annotations

import importlib.metadata

import pytest

from shardbeam.transforms.core.extras import install_command

REQUIRES = [
    "numpy>=2",
    'apache-beam[gcp]<3,>=2.76; extra == "dataflow"',
    "array-record; extra == 'array-record'",
    'build; extra == "build"',
    'setuptools>=77 ; extra == "build"',
    'tensorflow-datasets; python_version >= "3.11" and extra == "dev"',
]


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("dataflow", "pip install 'apache-beam[gcp]<3,>=2.76'"),
        ("array_record", "pip install array-record"),
        ("build", "pip install build 'setuptools>=77'"),
    ],
)
def test_the_packages_themselves_are_named(
    extra: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: REQUIRES)
    assert install_command(extra) == command


@pytest.mark.parametrize("extra", ["dataflow", "tensorflow", "array_record", "heic", "build"])
def test_the_extras_that_messages_name_have_packages(extra: str) -> None:
    assert install_command(extra) != "pip install "
