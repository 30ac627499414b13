"""Names of shard files."""

from __future__ import annotations

import re

import msgspec

# TFDS pads to five digits at least, and to the shard count's own digits beyond.
_MIN_DIGITS = 5
_DEFAULT_TEMPLATE = "-SSSSS-of-NNNNN"
_TEMPLATE = re.compile(r"^(?:[^A-Z]|S+|N+)*$")


class ShardNaming(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of a dataset are named.

    Attributes:
        prefix: Path of every file up to the shard's number; `{split}` stands for the split.
        suffix: What follows the shard's number.
        template: Runs of `S` and `N` stand for the shard's index and the shard count, padded
            with zeros to the run's length; empty for one file without a number. By default
            `-SSSSS-of-NNNNN`, padded further from 100,000 shards on, as TFDS does.
    """

    prefix: str
    suffix: str = ""
    template: str | None = None

    def __post_init__(self) -> None:
        template = self.template
        if template is None:
            return
        if not _TEMPLATE.match(template):
            raise ValueError(
                f"shard_name_template {template!r}: only runs of S and N are known; window "
                "templates (-W-, -V-) are for unbounded input"
            )
        if template and not ("S" in template and "N" in template):
            raise ValueError(f"shard_name_template {template!r} needs both S and N")

    @property
    def folder(self) -> str:
        """The folder of all files."""
        return self.prefix.rpartition("/")[0]

    @property
    def is_single_file(self) -> bool:
        """Whether there is one file a split, without a number in its name."""
        return self.template == ""

    def file_name(self, *, split: str, shard_index: int, num_shards: int) -> str:
        """Names a shard's file, relative to `folder`."""
        template = _DEFAULT_TEMPLATE if self.template is None else self.template
        digits = max(_MIN_DIGITS, len(str(num_shards))) if self.template is None else 0

        def number(run: re.Match[str]) -> str:
            value = shard_index if run[0].startswith("S") else num_shards
            return f"{value:0{max(digits, len(run[0]))}d}"

        base = self.prefix.rpartition("/")[2].replace("{split}", split)
        return f"{base}{re.sub(r'S+|N+', number, template)}{self.suffix}"
