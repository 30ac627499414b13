"""Puts what pages link to outside of `docs/` into the site, below `project/`."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_NAMES = (
    *("*.md", "examples/*", "benchmarks/RESULTS.md", "configs/*.yaml"),
    *("transforms/formats/base.py", "transforms/core/records.py"),
    "demo/report.html",  # of `make demo`; the navigation shows it
)


def on_files(files: Files, *, config: Any) -> Files:  # noqa: ANN401  # MkDocs calls it.
    """Adds the files of the project that pages may link to."""
    for path in sorted({path for name in _NAMES for path in _ROOT.glob(name) if path.is_file()}):
        name = path.relative_to(_ROOT).as_posix()
        files.append(File.generated(config, f"project/{name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:  # noqa: ANN401
    """Points links between `docs/` and the rest of the project to the site's own files."""
    del config, files
    here = page.file.src_uri
    # Where the page lies in the project, and where it lies in the site.
    source = here.removeprefix("project/") if here.startswith("project/") else f"docs/{here}"

    def move(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        inside = target.startswith("docs/")
        moved = target.removeprefix("docs/") if inside else f"project/{target}"
        return f"{link[1]}{posixpath.relpath(moved, posixpath.dirname(here))}{link[3]}"

    return _LINK.sub(move, markdown)
