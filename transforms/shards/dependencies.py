"""What decides a shard's bytes beside its key, because only some images depend on it.

A finished shard records these libraries with their versions, and what was decided about its
sources. It is taken over, from staging or from another version of the dataset, if both are the same
now.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardbeam.transforms.containers.base import Container
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.examples.encode.encode import library_versions
from shardbeam.transforms.examples.encode.size_fields import SizeFields


def find_versions(libraries: Iterable[str], *, container: Container) -> dict[str, str]:
    """Returns `{library: version}`, with the container's; the version of an absent one is empty."""
    versions, packed = library_versions(), container.versions()
    names = sorted({*libraries, *packed})
    return {name: {**versions, **packed}.get(name, "") for name in names}


def describe_difference(
    shard: ShardResult, *, container: Container, size_fields: SizeFields
) -> str:
    """Describes why a finished shard would come out differently now; empty if it would not.

    Args:
        shard: The finished shard.
        container: Its container.
        size_fields: Decides whether sources exchange width and height.

    Raises:
        InputError: The images that decide this cannot be read.
        OSError: The worker is out of file descriptors or memory.
    """
    now = find_versions(shard.libraries, container=container)
    others = [
        f"{name} {shard.libraries.get(name) or 'none'} (now {version or 'none'})"
        for name, version in now.items()
        if shard.libraries.get(name, "") != version
    ]
    if others:
        return f"was written with other libraries: {', '.join(others)}"
    for source, exchanged in shard.exchanged.items():
        if size_fields.are_exchanged(source) != exchanged:
            return (
                f"was written when the first images of source {source!r} "
                f"{'showed' if exchanged else 'did not show'} that it exchanges width and height"
            )
    return ""
