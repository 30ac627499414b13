"""The garbage collector pauses during imports."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path

import pytest

from shardbeam.transforms.core.garbage import without_collector


def test_the_collector_pauses_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_once.py").write_text("value = [[]]")
    monkeypatch.syspath_prepend(tmp_path)
    counts = [gc.get_freeze_count()]
    for _ in range(2):
        with without_collector():
            assert not gc.isenabled()
            importlib.import_module("imported_once")
        assert gc.isenabled()
        counts.append(gc.get_freeze_count())
    # What a second command in the same process leaves behind can still be collected.
    assert counts[0] < counts[1] == counts[2]
