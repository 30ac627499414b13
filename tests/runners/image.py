"""The image of the Dockerfile, built and run with buildah on stand-ins for its base images."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT_ROOT
from tests.runners.tools import TOOLS, find_tool
from tests.support.dataset import Run

_NAME = "shardbeam"
_SCRIPT = Path(__file__).with_name("build_image.sh")
# Neither an engine nor the kernel's help is needed.
_ENVIRONMENT = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
_BUILDAH = (
    "buildah",
    *("--root", str(TOOLS / "containers")),
    *("--runroot", str(TOOLS / "containers" / "run")),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Container:
    """A container of the image.

    Attributes:
        name: What buildah calls it.
        config: The image's configuration (https://github.com/opencontainers/image-spec).
    """

    name: str
    config: Mapping[str, Any]

    def command(
        self, *words: str, folders: Mapping[Path, str], environment: Mapping[str, str]
    ) -> list[str]:
        """The command line that does what `docker run IMAGE WORDS` does.

        Args:
            words: What to run, or flags.
            folders: `{folder: where it is mounted}`.
            environment: Variables beyond the image's own.
        """
        volumes = [f"--volume={folder}:{inside}" for folder, inside in folders.items()]
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        entrypoint = self.config["Entrypoint"]
        return [*_BUILDAH, "run", *volumes, *variables, self.name, "--", *entrypoint, *words]

    def run(
        self,
        *words: str,
        folders: Mapping[Path, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        """Runs something in it, to its end."""
        done = subprocess.run(
            self.command(*words, folders=folders or {}, environment=environment or {}),
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    def write_worker(self, path: Path, *, folders: Mapping[Path, str]) -> Path:
        """Writes a command that starts a worker in it, as Flink's PROCESS environment wants it."""
        command = self.command(folders=folders, environment={})
        variables = "".join(f"export {name}={value}\n" for name, value in _ENVIRONMENT.items())
        path.write_text(f'#!/bin/sh\n{variables}exec {shlex.join(command)} "$@"\n')
        path.chmod(0o755)
        return path


@functools.cache
def build_image() -> None:
    """Builds the image, once; skips the test where it cannot be."""
    for tool in ("buildah", "debootstrap", "beam-boot"):
        find_tool(tool)
    if os.geteuid() != 0:
        pytest.skip("building the image needs root")
    built = subprocess.run(
        [_SCRIPT, TOOLS, _NAME], cwd=PROJECT_ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr


def start_container() -> Container:
    """Makes a container of the image; `remove_container` must follow."""
    build_image()
    name = _buildah("from", _NAME).strip()
    config = json.loads(_buildah("inspect", "--type=image", _NAME))["OCIv1"]["config"]
    return Container(name=name, config=config)


def remove_container(container: Container) -> None:
    """Removes a container and what was written in it."""
    _buildah("rm", container.name)


def _buildah(*words: str) -> str:
    done = subprocess.run(
        [*_BUILDAH, *words],
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
