"""Whether images and annotations belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.census import Census, SourceCensus
from shardbeam.transforms.formats.sources import Source


def check_join(census: Census, *, sources: Iterable[Source]) -> Census:
    """Refuses a join in which no annotation of a source names a listed image: a root is wrong.

    Returns:
        The census as it is.

    Raises:
        InputError: With one listed key, one annotated one, and the likely mend.
    """
    for source in sources:
        seen = census.sources.get(source.name, SourceCensus())
        if seen.referenced and not seen.matched:
            listed = repr(seen.listed_key) if seen.listed_key else "no image"
            referenced = repr(seen.referenced_key) if seen.referenced_key else "no file"
            raise InputError(
                uri=", ".join(source.format.roots()),
                problem=(
                    f"none of the {seen.referenced} annotated images is listed here: the "
                    f"annotations name {referenced}, the listing holds {listed}; "
                    f"{next(_mends(listed=seen.listed_key, referenced=seen.referenced_key))}"
                ),
            )
    return census


def _mends(*, listed: str, referenced: str) -> Iterator[str]:
    """Yields what may mend the config, the likeliest first."""
    if "\\" in referenced:
        yield "the annotations' names are Windows paths: replace the backslashes"
    if listed.endswith(f"/{referenced}"):
        yield f"move the root down: add /{listed.removesuffix(f'/{referenced}')} to `images`"
    if referenced.endswith(f"/{listed}"):
        yield f"move the root up: take /{referenced.removesuffix(f'/{listed}')} from `images`"
    listed_folder, referenced_folder = listed.rpartition("/")[0], referenced.rpartition("/")[0]
    if listed_folder and referenced and not referenced_folder:
        yield f"move the root down: try `images` with /{listed_folder} added"
    if referenced_folder and listed and not listed_folder:
        yield f"move the root up: try the folder that holds {referenced_folder}/"
    yield "check that `images` and `annotations` belong together"
