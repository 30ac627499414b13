"""The commands in docs/storage.md run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.conftest import PROJECT_ROOT
from tests.support.dataset import run
from tests.support.gcs_server import ProxiedGcs

PAGE = (PROJECT_ROOT / "docs" / "storage.md").read_text(encoding="utf-8")


def test_the_commands_run(gcs: ProxiedGcs, bucket: str, shapes: Path) -> None:
    gcs.write_folder(f"{bucket}/coco/images", shapes / "images")
    annotations = (shapes / "annotations" / "instances.json").read_bytes()
    gcs.write(f"{bucket}/coco/instances.json", annotations)
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line) for line in block.splitlines()]
    assert [command[:2] for command in commands] == [
        ["shardbeam", command] for command in ("plan", "build", "show")
    ]
    for command in commands:
        words = [word.replace("gs://my-bucket", bucket) for word in command[1:]]
        result = run(*words)
        assert result.exit_code == 0, result.stderr
