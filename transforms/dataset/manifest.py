"""The manifest: what a dataset holds, and what it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import google_crc32c
import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.examples.features import FeatureSpec

_MODULUS = 1 << 256


class Fingerprint:
    """A digest of a set of images: independent of their order, and mergeable.

    The sum, modulo 2²⁵⁶, of the SHA-256 digests of the images' source, key, size and content.

    Attributes:
        count: How many images it covers.
    """

    def __init__(self) -> None:
        self._sum = 0
        self.count = 0

    @classmethod
    def from_hex(cls, digest: str, *, count: int) -> Fingerprint:
        """Restores what `hex` and `count` gave."""
        fingerprint = cls()
        fingerprint._sum = int(digest, 16)
        fingerprint.count = count
        return fingerprint

    def add(self, *, source: str, key: str, size_bytes: int, sha256: str) -> None:
        """Adds one image.

        Args:
            source: Which input of the config it belongs to.
            key: Its path relative to the source's root.
            size_bytes: Its length.
            sha256: Digest of its bytes, hex.
        """
        # Neither names nor keys hold a NUL, so no two images make the same text.
        text = f"{source}\0{key}\0{size_bytes}\0{sha256}"
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
        self._sum = (self._sum + digest) % _MODULUS
        self.count += 1

    def merge(self, other: Fingerprint) -> None:
        """Adds the images that another fingerprint covers."""
        self._sum = (self._sum + other._sum) % _MODULUS
        self.count += other.count

    def hex(self) -> str:
        """Returns the digest as 64 hex digits."""
        return f"{self._sum:064x}"


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A shard.

    Attributes:
        path: Its path below the dataset's folder.
        examples: Examples in it.
        num_bytes: Length of the file.
        crc32c: Checksum of the file, 8 hex digits.
    """

    path: str
    examples: int
    num_bytes: int
    crc32c: str


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file other than a shard.

    Attributes:
        path: Its path below the dataset's folder.
        size_bytes: Its length.
        crc32c: Checksum of the file, 8 hex digits.
    """

    path: str
    size_bytes: int
    crc32c: str


class SplitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A split.

    Attributes:
        shards: Its shards, in order.
        outcome: What became of its inputs.
    """

    shards: tuple[ShardEntry, ...]
    outcome: SplitOutcome


class InputEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The images that a dataset was made from.

    Attributes:
        images: How many were read.
        fingerprint: Their `Fingerprint`, hex.
    """

    images: int
    fingerprint: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a dataset holds, and what it was made from; the same for the same input and config.

    Attributes:
        shardbeam: Version of Shardbeam.
        name: The dataset's name.
        version: The dataset's version.
        seed: Key of the hash that decides split, shard and order.
        config: The config, without what differs from place to place: output and input roots.
        codecs: `{library: version}` of all that decides bytes.
        inputs: The images that were read.
        labels: `{written label: id}`.
        features: The features of every Example.
        splits: What was written, by split.
        files: The dataset's files other than shards and the manifest itself.
        checksum: CRC-32C of the manifest without it, 8 hex digits.
    """

    shardbeam: str
    name: str
    version: str
    seed: int
    config: dict[str, Any]
    codecs: Mapping[str, str]
    inputs: InputEntry
    labels: Mapping[str, int]
    features: tuple[FeatureSpec, ...]
    splits: Mapping[str, SplitEntry]
    files: tuple[FileEntry, ...]
    checksum: str = ""

    def paths(self) -> Iterator[str]:
        """Yields the paths, below the dataset's folder, of all shards and files it lists."""
        for split in self.splits.values():
            for shard in split.shards:
                yield shard.path
        for file in self.files:
            yield file.path


_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Renders `manifest.json`: indented, keys sorted, with its checksum."""
    sealed = msgspec.structs.replace(manifest, checksum=manifest_checksum(manifest))
    return msgspec.json.format(msgspec.json.encode(sealed, order="sorted"), indent=2) + b"\n"


def manifest_checksum(manifest: Manifest) -> str:
    """Returns the CRC-32C of a manifest without its checksum."""
    bare = msgspec.json.encode(msgspec.structs.replace(manifest, checksum=""), order="sorted")
    return f"{google_crc32c.value(bare):08x}"


def decode_manifest(data: bytes, *, uri: str) -> Manifest:
    """Reads `manifest.json`.

    Args:
        data: Its content.
        uri: Where it is, for the error message.

    Raises:
        InputError: It is damaged, or lists a path outside the dataset's folder.
    """
    try:
        manifest = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(uri=uri, problem=f"not a manifest of Shardbeam: {error}") from error
    check_paths(manifest.paths(), uri=uri)
    return manifest


def check_paths(paths: Iterable[str], *, uri: str) -> None:
    """Checks a list of a dataset's files, which are deleted when the dataset is replaced.

    Args:
        paths: Paths below the dataset's folder.
        uri: Where the list is, for the error message.

    Raises:
        InputError: A path leads out of that folder.
    """
    for path in paths:
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise InputError(uri=uri, problem=f"lists {path!r}, which is not below the dataset")
