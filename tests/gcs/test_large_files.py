"""Long annotation files in a bucket are read from a temporary copy."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

from shardbeam.transforms.storage import disk_file, limits
from shardbeam.transforms.storage.gcs.storage import GcsStorage
from tests.gcs.conftest import SETTINGS
from tests.support.builds import wait_for
from tests.support.dataset import Tree, coco_words, finish, read_dataset, run, start
from tests.support.gcs_proxy import Request
from tests.support.gcs_server import ProxiedGcs

_FILE = "in/annotations/instances.json"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files; each annotation file is a long one."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(limits, "WHOLE_ANNOTATION_BYTES", 0)
    monkeypatch.setattr(disk_file, "_PART_BYTES", 5_000)
    return folder


def _reads(gcs: ProxiedGcs) -> list[Request]:
    return [each for each in gcs.proxy.requests if each.is_media and each.name == _FILE]


def test_the_same_dataset(
    gcs: ProxiedGcs, source: str, expected: Tree, temporary: Path, tmp_path: Path
) -> None:
    run(*coco_words(source, tmp_path / "out", *SETTINGS), exit_code=0)

    assert read_dataset(tmp_path / "out") == expected
    size_bytes = len(gcs.read(f"gs://{source.split('/')[2]}/{_FILE}"))
    pinned = [each for each in _reads(gcs) if "generation" in each.query]
    # The first bytes show whether it is compressed.
    assert len(pinned) == 1 + -(-size_bytes // 5_000)
    assert len({each.query["generation"] for each in pinned}) == 1
    assert list(temporary.iterdir()) == []


def test_content_encoding_gzip_is_unpacked(gcs: ProxiedGcs, bucket: str, temporary: Path) -> None:
    """Such an object is read whole, because a part of it cannot be unpacked."""
    from shardbeam.transforms.formats.parsing.json_sections import open_json

    text = json.dumps({"images": []}).encode()
    uri = f"{bucket}/x.json"
    gcs.write(uri, gzip.compress(text))
    name = uri.removeprefix("gs://").partition("/")
    request = urllib.request.Request(
        f"{gcs._server}/storage/v1/b/{name[0]}/o/{name[2]}",
        data=json.dumps({"contentEncoding": "gzip"}).encode(),
        method="PATCH",
        headers={"Host": gcs._public, "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=60).close()

    assert open_json(uri, storage=GcsStorage()).read(0, len(text) + 1) == text


# Waits in the middle of the scan, so that a signal always comes in time.
_ENDLESS = """
import os, signal, sys, threading

signal.signal(signal.SIGINT, signal.default_int_handler)
from shardbeam.transforms.formats.parsing import json_sections
from shardbeam.transforms.storage import limits

limits.WHOLE_ANNOTATION_BYTES = 0

def hold(self):
    with open(os.environ["MARK"], "w"):
        threading.Event().wait()

json_sections._Scanner.peek = hold
from shardbeam.__main__ import console
sys.exit(console())
"""


def test_a_signal_leaves_nothing(
    gcs: ProxiedGcs, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    process = start(
        *coco_words(source, tmp_path / "out", *SETTINGS),
        cwd=tmp_path,
        command=(sys.executable, "-c", _ENDLESS),
    )
    wait_for((tmp_path / "mark").exists, process)
    files = _open_files(process.pid)
    # The copy is there, without a name.
    assert any(str(temporary) in each and "deleted" in each for each in files), files
    process.send_signal(signal.SIGINT)
    result = finish(process)

    assert result.exit_code == 130
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("dataset_info*"))
    assert [path for path in temporary.rglob("*") if path.is_file()] == []


def _open_files(pid: int) -> list[str]:
    files = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        # Another thread may close one meanwhile.
        with contextlib.suppress(FileNotFoundError):
            files.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return files
