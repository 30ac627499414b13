"""How the files of shards are named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

# TFDS pads numbers to five digits, or to the number of digits of the shard count.
_MIN_DIGITS = 5
_DEFAULT_TEMPLATE = "-SSSSS-of-NNNNN"
_TEMPLATE = re.compile(r"^(?:[^A-Z]|S+|N+)*$")


class FileNaming(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of a dataset are named.

    Attributes:
        prefix: Name of every file up to the shard's number, perhaps with folders in front;
            `{split}` stands for the split.
        suffix: The end of the name, after the shard's number.
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
    def is_single_file(self) -> bool:
        """Whether each split is one file, without a number in its name."""
        return self.template == ""

    def file_name(self, *, split: str, shard_index: int, num_shards: int) -> str:
        """Names a shard's file, relative to the dataset's folder."""
        digits = max(_MIN_DIGITS, len(str(num_shards))) if self.template is None else 0

        def number(run: re.Match[str]) -> str:
            value = shard_index if run[0].startswith("S") else num_shards
            return f"{value:0{max(digits, len(run[0]))}d}"

        return self._fill(number).replace("{split}", split)

    def pattern(self, splits: Iterable[str]) -> str:
        """Returns a regular expression for all names that shards of these splits may have."""
        name = re.escape(self._fill(lambda _: "\0").replace("{split}", "\1"))
        return name.replace("\0", r"\d+").replace("\1", f"(?:{'|'.join(map(re.escape, splits))})")

    def glob(self, split: str) -> str:
        """Returns a pattern for the names of a split's shards; `split` may be `*`."""
        name = re.sub(r"[*?\[]", r"[\g<0>]", self._fill(lambda _: "\0"))
        return name.replace("\0", "*").replace("{split}", split)

    @property
    def tfds_template(self) -> str:
        """The naming as TFDS's `filepathTemplate`, in which numbers are padded to five digits."""
        template = self._fill(lambda run: "{SHARD_INDEX}" if run[0][0] == "S" else "{NUM_SHARDS}")
        return template.replace("{split}", "{SPLIT}")

    def _fill(self, number: Callable[[re.Match[str]], str]) -> str:
        template = _DEFAULT_TEMPLATE if self.template is None else self.template
        base = self.prefix.rpartition("/")[2]
        return f"{base}{re.sub(r'S+|N+', number, template)}{self.suffix}"
