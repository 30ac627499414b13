"""A folder of class folders with bad files of all kinds, and the expected outcome of each file."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from shardbeam.transforms.core.reasons import Exclusion, Reason
from tests.support.image_makers import photograph, png, save

# The outcome of a listed file: an Example, a reject or an exclusion.
EXAMPLE = "example"
Outcome = str | Reason | Exclusion

JPEG = save(photograph(width=96, height=64), "JPEG", quality=90)
PNG = save(photograph(), "PNG")

_MIDDLE = len(JPEG) * 2 // 3
DAMAGED_JPEG = JPEG[:_MIDDLE] + bytes(200) + JPEG[_MIDDLE + 200 :]

_LONGEST_NAME = "x" * 246 + ".jpg"


def _bomb() -> bytes:
    """A PNG file of 225 million pixels in 27 KB."""
    side = 15_000
    rows = bytes((1 + side // 8) * side)
    return png(width=side, height=side, bit_depth=1, color_type=0, rows=rows)


def _png_with_wrong_checksum() -> bytes:
    broken = bytearray(PNG)
    broken[-20] ^= 1
    return bytes(broken)


def _sixteen_bits() -> bytes:
    rows = b"".join(b"\0" + struct.pack(">4H", *(9000 * n for n in range(4))) for _ in range(3))
    return png(width=4, height=3, bit_depth=16, color_type=0, rows=rows)


# {key: (content, outcome)}; names that only some file systems take are in `make_nasty_folder`.
FILES: dict[str, tuple[bytes, Outcome]] = {
    "cat/good.jpg": (JPEG, EXAMPLE),
    "cat/good.PNG": (PNG, EXAMPLE),
    "cat/progressive.jpeg": (save(photograph(), "JPEG", progressive=True), EXAMPLE),
    "cat/cmyk.jpg": (save(photograph().convert("CMYK"), "JPEG"), EXAMPLE),
    "cat/palette.gif": (save(photograph().convert("P"), "GIF"), EXAMPLE),
    "cat/picture.webp": (save(photograph(), "WEBP"), EXAMPLE),
    "cat/picture.bmp": (save(photograph(), "BMP"), EXAMPLE),
    "cat/picture.tiff": (save(photograph(), "TIFF"), EXAMPLE),
    "cat/alpha.png": (save(photograph().convert("RGBA"), "PNG"), EXAMPLE),
    "cat/sixteen_bits.png": (_sixteen_bits(), EXAMPLE),
    # Bad content.
    "cat/zero.jpg": (b"", Reason.ZERO_BYTE),
    "cat/text.jpg": (b"This is no image.\n", Reason.NOT_AN_IMAGE),
    "cat/page.png": (b"<!DOCTYPE html><title>404</title>", Reason.NOT_AN_IMAGE),
    "cat/png_inside.jpg": (PNG, EXAMPLE),
    "cat/webp_inside.png": (save(photograph(), "WEBP"), EXAMPLE),
    "cat/truncated.jpg": (JPEG[: len(JPEG) // 2], Reason.TRUNCATED),
    "cat/truncated.png": (PNG[: len(PNG) // 2], Reason.TRUNCATED),
    "cat/truncated.bmp": (save(photograph(), "BMP")[:-100], Reason.TRUNCATED),
    "cat/only_a_header.jpg": (JPEG[:20], Reason.TRUNCATED),
    "cat/damaged.jpg": (DAMAGED_JPEG, Reason.JPEG_DAMAGED),
    "cat/checksum.png": (_png_with_wrong_checksum(), Reason.CORRUPT),
    "cat/bomb.png": (_bomb(), Reason.DECOMPRESSION_BOMB),
    "cat/phone.jxl": (b"\xff\x0a" + bytes(40), Reason.UNSUPPORTED_IMAGE),
    # Good content under a bad name, or the other way round.
    "outside.jpg": (JPEG, Reason.NO_CLASS_FOLDER),
    "cat/notes.txt": (b"notes", Exclusion.NOT_AN_IMAGE_NAME),
    "cat/no_extension": (JPEG, Exclusion.NOT_AN_IMAGE_NAME),
    "cat/good.jpg.part": (JPEG, Exclusion.NOT_AN_IMAGE_NAME),
    "README": (b"", Exclusion.NOT_AN_IMAGE_NAME),
    "cat/.hidden.jpg": (JPEG, Exclusion.HIDDEN_FILE),
    "cat/Thumbs.db": (b"\0", Exclusion.HIDDEN_FILE),
    ".cache/cat/good.jpg": (JPEG, Exclusion.HIDDEN_FILE),
    "__MACOSX/cat/._good.jpg": (b"\0", Exclusion.HIDDEN_FILE),
    # Unusual names of good files.
    "cat/folder.jpg/inside.jpg": (JPEG, EXAMPLE),
    "cat/deep/er/than/usual/a.jpg": (JPEG, EXAMPLE),
    "cat/with space .jpg": (JPEG, EXAMPLE),
    "cat/-rf.jpg": (JPEG, EXAMPLE),
    "cat/[a-z]*?{}.jpg": (JPEG, EXAMPLE),
    "cat/100%00.jpg": (JPEG, EXAMPLE),
    "cat/back\\slash.jpg": (JPEG, EXAMPLE),
    "cat/\"quotes'.jpg": (JPEG, EXAMPLE),
    "cat/two\nlines\r.jpg": (JPEG, EXAMPLE),
    "cat/\x1b[31mred.jpg": (JPEG, EXAMPLE),
    "cat/\u81c9\u66f8 \N{CAT FACE}\u200d\N{FIRE}.jpg": (JPEG, EXAMPLE),
    "cat/\u202egpj.exe.jpg": (JPEG, EXAMPLE),
    f"cat/{_LONGEST_NAME}": (JPEG, EXAMPLE),
    "\N{DOG FACE} d\u00f6g/1.jpg": (JPEG, EXAMPLE),
    # Two spellings of one name; the composed one is the key of both.
    "cat/\u00e9.jpg": (JPEG, EXAMPLE),
    "cat/e\u0301.jpg": (JPEG, Reason.DUPLICATE_KEY),
}

# {name: (target, outcome)}
LINKS: dict[str, tuple[str, Outcome | None]] = {
    "cat/link.jpg": ("good.jpg", EXAMPLE),
    "cat/dangling.jpg": ("nowhere.jpg", Reason.IMAGE_UNREADABLE),
    "cat/itself.jpg": ("itself.jpg", Reason.IMAGE_UNREADABLE),
    # Links to folders: one into itself, two out of the root, and one whose files are listed under
    # both names.
    "cat/deep/loop": ("..", Exclusion.LINKED_FOLDER),
    "outside": ("../..", Exclusion.LINKED_FOLDER),
    ".linked": ("../..", Exclusion.HIDDEN_FILE),
    "wolf": ("\N{DOG FACE} d\u00f6g", None),
}
BEHIND_LINKS: dict[str, Outcome] = {"wolf/1.jpg": EXAMPLE}

NOT_UTF8 = b"cat/\xe9\xff.jpg"


def make_nasty_folder(root: Path) -> dict[str, list[Outcome]]:
    """Makes the folder.

    Returns:
        The outcomes of the listed files with each key.
    """
    outcomes: dict[str, list[Outcome]] = {}

    def expect(name: str, outcome: Outcome) -> None:
        outcomes.setdefault(name, []).append(outcome)

    for name, (content, outcome) in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        expect(name.replace("e\u0301", "\u00e9"), outcome)
    for name, (target, linked) in LINKS.items():
        (root / name).symlink_to(target)
        if linked is not None:
            expect(name, linked)
    for name, outcome in BEHIND_LINKS.items():
        expect(name, outcome)
    (root / "cat" / "empty_folder.jpg").mkdir()
    # Reading it would block forever.
    os.mkfifo(root / "cat" / "pipe.jpg")
    expect("cat/pipe.jpg", Reason.IMAGE_UNREADABLE)
    for name, outcome in _picky_files(root):
        expect(name, outcome)
    return outcomes


def _picky_files(root: Path) -> Iterator[tuple[str, Outcome]]:
    """Makes files that not every file system, or user, allows."""
    try:
        Path(os.fsdecode(os.fsencode(root) + b"/" + NOT_UTF8)).write_bytes(JPEG)
    except OSError:
        pass
    else:
        yield "cat/\\udce9\\udcff.jpg", Reason.UNREADABLE_NAME
    if os.geteuid() != 0:
        closed = root / "cat" / "closed.jpg"
        closed.write_bytes(JPEG)
        closed.chmod(0)
        yield "cat/closed.jpg", Reason.IMAGE_UNREADABLE


def count_files(root: Path) -> int:
    """Counts all but folders, also behind links, and the links to folders that are left out."""
    count = 0
    inside = os.path.realpath(root) + os.sep
    above: list[tuple[str, set[str]]] = [(str(root), {os.path.realpath(root)})]
    while above:
        folder, folders = above.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                real = os.path.realpath(entry.path)
                if os.path.isdir(entry.path) and real not in folders and real.startswith(inside):
                    above.append((entry.path, {*folders, real}))
                else:
                    count += 1
    return count
