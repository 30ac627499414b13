"""The commands in docs/internals/storage.md run unchanged."""

from __future__ import annotations

from pathlib import Path

from tests.support.dataset import run
from tests.support.gcs_server import ProxiedGcs
from tests.support.pages import commands


def test_the_commands_run(gcs: ProxiedGcs, bucket: str, shapes: Path) -> None:
    gcs.write_folder(f"{bucket}/coco/images", shapes / "images")
    annotations = (shapes / "annotations" / "instances.json").read_bytes()
    gcs.write(f"{bucket}/coco/instances.json", annotations)
    shown = commands("docs/internals/storage.md")
    assert [command[:2] for command in shown] == [
        ["shardbeam", command] for command in ("plan", "build", "show")
    ]
    for command in shown:
        words = [word.replace("gs://my-bucket", bucket) for word in command[1:]]
        result = run(*words)
        assert result.exit_code == 0, result.stderr
