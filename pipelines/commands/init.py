"""`shardbeam init`: recognizes the dataset in a folder, and writes a config for it."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shardbeam.configs.load import ConfigError, make_config
from shardbeam.configs.passwords import hide_passwords
from shardbeam.configs.yaml_text import dump_yaml
from shardbeam.pipelines.cli.commands import InitArguments
from shardbeam.pipelines.cli.flags import source_flags
from shardbeam.pipelines.cli.logging import end_progress, write_stderr, write_stdout
from shardbeam.pipelines.commands.init_hints import (
    describe_damaged,
    describe_tool,
    explain_unrecognized,
    suggest_zip,
)
from shardbeam.pipelines.failures import RunError, UsageError, blaming
from shardbeam.pipelines.overlap import check_apart, check_file, find_replaced, write_file
from shardbeam.pipelines.plan import Plan, absolute_path, make_plan
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.text import counted, escape
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.formats.base import (
    Format,
    FormatError,
    Role,
    built_in_formats,
    find_format,
)
from shardbeam.transforms.formats.names import is_split_name, listing_exclusion
from shardbeam.transforms.formats.numbered_files import describe_incomplete
from shardbeam.transforms.formats.parsing.root_files import relative_path
from shardbeam.transforms.formats.recognition import (
    FOLDERS,
    IMAGES,
    MASKS,
    TABLE,
    DoubtError,
    Folder,
    Recognized,
)
from shardbeam.transforms.storage.archives.open import expand_root, is_archive, nothing_found
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

# The most kinds of files that an error shows.
_SHOWN = 8
# If more than this share of the annotated images is missing, they may be in another folder.
_MANY_MISSING = 0.1
_ONE_LINE = 1_000_000
_TOLERANCE = "rejects: {max_ratio: 0.05}  # tolerate 5 % of rejects in a split instead of 1 %"
_TOLERATE = (
    "fix that first; or, if the rest is the dataset that you want, take the # off the line "
    "`rejects` of the config"
)
# What a format may say about an image; the last ones say most.
_LEVELS = ("no classes", "classes alone", "boxes alone", "outlines")
_MAPS = {Kind.SEMANTIC, Kind.PANOPTIC, Kind.INSTANCE_MASKS}
# Folders of annotations, beside those of the images.
_OF_ANNOTATIONS = ("annotations", "labels")
# CVAT's name of the subset of tasks without one.
_DEFAULT_SUBSET = "default"
# A name for the images whose files name no split, where others do.
_REST = "rest"
# The ranks of formats that can find splits in the names of folders.
_BY_FOLDERS = (MASKS, FOLDERS, IMAGES)
# A line near the beginning of each config; the lines before it describe the dataset.
_NEXT = b"# `shardbeam plan FILE` says what this builds, and `shardbeam build FILE` builds it."
_HEAD_BYTES = 10_000
# {what a format does with images that no annotation file names: the comment in a config}
_UNANNOTATED = {
    "drop": "leaves out images that no annotation file names; keep writes them as negatives",
    "keep": "writes images that no annotation file names as negatives; drop leaves them out",
}


class _Candidate(NamedTuple):
    """A dataset that a format recognizes, with the config that reads it.

    Attributes:
        name: The format's name.
        recognized: What the format has found.
        raw: The config, as plain data.
        usable: Its plan; None if there is a problem.
        problem: Why it cannot be used.
    """

    name: str
    recognized: Recognized
    raw: dict[str, Any]
    usable: Plan | None
    problem: str

    @property
    def plan(self) -> Plan:
        """The plan of a candidate that can be used."""
        assert self.usable is not None
        return self.usable


class _Foreseen(NamedTuple):
    """The rejects that a build would have.

    Attributes:
        lines: Describe them, and say whether a build would be refused.
        tolerance: The key of the config that lets all of them pass; empty if none is needed.
    """

    lines: Sequence[str]
    tolerance: str = ""


def run_init(arguments: InitArguments) -> int:
    """Writes a config for the dataset in a folder, and says on stderr what it is.

    Raises:
        FormatError: There is no format with the given name.
        InputError: The folder cannot be listed, or the user has to decide what is in it.
        UsageError: The file exists already, lies in a dataset, or cannot be written.
    """
    if arguments.format is not None:
        find_format(arguments.format)
    folder = _list_around(arguments.path)
    if not folder.files:
        raise nothing_found(arguments.path, whose="the dataset's")
    found = _choose(folder, only=arguments.format)
    lines = [*_describe(found, folder=folder)]
    if folder.first:
        lines.append(f"{arguments.path} is a file; this is about its folder, {folder.root}")
    try:
        foreseen = _foresee(found, folder=folder)
    except (InputError, RunError) as error:
        raise InputError(
            uri=arguments.path, problem=f"it looks like {lines[0]}, but {error}"
        ) from error
    lines += foreseen.lines
    if hide_passwords(arguments.path) != arguments.path:
        lines.append(
            "*** stands for the URI's password: write it there, or where fsspec looks for it"
        )
    text = hide_passwords(_write_yaml(found, heading=lines, tolerance=foreseen.tolerance))
    end_progress()
    write_stderr("".join(f"{escape(line)}\n" for line in lines))
    if arguments.output is None:
        write_stdout(text)
        return 0
    _check_output(arguments.output, folder=folder.root, overwrite=arguments.overwrite)
    write_file(arguments.output, text.encode(), flag="--output")
    write_stderr(
        f"wrote {escape(arguments.output)}; next: shardbeam plan {escape(arguments.output)}\n"
    )
    return 0


def _list_around(path: str) -> Folder:
    """Lists a folder; of a file, the folder around it, with that file first."""
    if is_archive(path) or storage_for(path).stat(path) is None:
        return Folder(path)
    root = posixpath.dirname(path)
    if posixpath.basename(root).lower() in _OF_ANNOTATIONS:
        root = posixpath.dirname(root)
    return Folder(root or ".", first=posixpath.relpath(path, root or "."))


def _check_output(output: str, *, folder: str, overwrite: bool) -> None:
    """Makes sure that a config may be written to a file, which may lie in the dataset's folder.

    Raises:
        UsageError: It may not.
    """
    within = check_file(output, name="--output", inputs=[folder])
    storage = storage_for(output)
    with blaming(f"--output: {output}"):
        if find_replaced(output, flag="--output") is None:
            return
        if not overwrite:
            raise UsageError(f"{output}: exists already; --overwrite replaces it")
        if within and _NEXT not in storage.read(output, size_bytes=_HEAD_BYTES):
            raise UsageError(
                f"--output: {output} exists, and is not a config that `shardbeam init` wrote, but "
                "may be a file of the dataset; name another file"
            )


def _choose(folder: Folder, *, only: str | None) -> _Candidate:
    """Finds the dataset in a folder.

    Raises:
        InputError: There is none, there may be several, or the user has to decide.
    """
    found: list[_Candidate] = []
    formats = dict(built_in_formats())
    if only is not None:
        formats.setdefault(only, find_format(only))
    for name, format_class in formats.items():
        if only in (None, name) and (recognized := _recognize(format_class, folder)) is not None:
            if only is not None and recognized.sources:
                # The user has named the format, which settles the question.
                recognized = msgspec.structs.replace(recognized, problem="")
            found.append(_try(name, recognized, folder=folder))
    found = [each for each in found if _names_first(each, folder=folder)] or found
    best = min((each.recognized.rank for each in found), default=0)
    likely = [each for each in found if each.recognized.rank == best]
    asks = any(each.recognized.asks and each.problem for each in likely)
    certain = [each for each in likely if not each.problem and not asks]
    if best == FOLDERS and only is None and (unread := describe_tool(folder)):
        names = ", ".join(each.name for each in likely)
        problem = f"{unread}; to read the images without these files: --format {names}"
        raise InputError(uri=folder.root, problem=problem)
    left_out = [
        f"not read: {each.name} ({each.recognized.what}): {each.problem}"
        for each in likely
        if each.problem
    ]
    chosen = certain[0] if len(certain) == 1 else _richest(certain, folder=folder)
    if chosen is not None:
        notes = (*chosen.recognized.notes, *left_out)
        return chosen._replace(recognized=msgspec.structs.replace(chosen.recognized, notes=notes))
    raise InputError(uri=folder.root, problem=_explain(likely, folder=folder, only=only))


def _names_first(found: _Candidate, *, folder: Folder) -> bool:
    """Whether a candidate reads the file that the user has named."""
    sources = found.recognized.sources.values()
    values = [value for source in sources for value in source.values()]
    files = [path for value in values for path in (value if isinstance(value, list) else [value])]
    return bool(folder.first) and folder.uri(folder.first) in files


def _recognize(format_class: type[Format], folder: Folder) -> Recognized | None:
    try:
        return format_class.recognize(folder)
    except DoubtError as doubt:
        return Recognized(what=doubt.what, problem=str(doubt))


def _richest(found: Sequence[_Candidate], *, folder: Folder) -> _Candidate | None:
    """Chooses the candidate that says more about the same images than all others, if there is one.

    Returns:
        The candidate, with notes about the others; None if several say as much, or another one has
        images that it lacks.
    """
    levels = {each.name: _level(each) for each in found}
    richest = max(found, key=lambda each: levels[each.name], default=None)
    others = [each for each in found if each is not richest]
    if richest is None or max(levels[each.name] for each in others) == levels[richest.name]:
        return None
    images = _read_images(richest, folder=folder)
    if not all(_read_images(each, folder=folder) <= images for each in others):
        return None
    try:
        counts = {each.name: _count_written(each) for each in found}
    except RunError:
        # Somebody has to say whether this matters.
        return None
    if max(counts.values()) > counts[richest.name]:
        return None
    notes = [
        f"{richest.name} is read, because it has {_LEVELS[levels[richest.name]]}; {each.name} "
        f"({each.recognized.what}) is about the same images and has {_LEVELS[levels[each.name]]}: "
        f"--format {each.name} reads it instead"
        for each in others
    ]
    recognized = msgspec.structs.replace(
        richest.recognized, notes=(*richest.recognized.notes, *notes)
    )
    return richest._replace(recognized=recognized)


def _level(found: _Candidate) -> int:
    """Returns how much a candidate says about an image: an index of `_LEVELS`."""
    kinds = found.plan.encoder.kinds
    if found.recognized.outlines or not _MAPS.isdisjoint(kinds):
        return 3
    if Kind.DETECTION in kinds:
        return 2
    return int(not {Kind.CLASSIFICATION, Kind.CAPTIONS}.isdisjoint(kinds))


def _read_images(found: _Candidate, *, folder: Folder) -> set[str]:
    """Returns the images of a folder that a candidate's config reads."""
    return {path for path, role in _find_roles(found, folder=folder) if role is Role.IMAGE}


def _count_written(found: _Candidate) -> int:
    """Counts the images that a candidate's config would write.

    Raises:
        RunError: Its files cannot be read.
    """
    # Imported here, as in `_foresee`.
    from shardbeam.pipelines.preview import count_inputs

    return sum(count_inputs(found.plan).images.values())


def _try(name: str, recognized: Recognized, *, folder: Folder) -> _Candidate:
    """Makes the config of a dataset, and checks whether it can be used."""
    dataset = folder.dataset_name()
    sources = {split: {"format": name, **keys} for split, keys in recognized.sources.items()}
    if [*sources] == [_DEFAULT_SUBSET]:
        sources = {"train": sources[_DEFAULT_SUBSET]}
    raw: dict[str, Any] = {"name": dataset, "version": "1.0.0"}
    raw |= {"source": sources[""]} if "" in sources else {"splits": sources}
    raw["output"] = {"path": f"tfrecords/{dataset}"}
    problem = recognized.problem
    if "" in sources and len(sources) > 1:
        problem = _offer_splits(sources, raw=raw)
    plan = None
    if not problem:
        try:
            plan = make_plan(make_config(raw, origin="", find_format=find_format))
            if _overlaps(plan, folder=folder):
                beside = os.path.relpath(os.path.dirname(os.path.abspath(folder.root)))
                raw["output"] = {"path": join_uri(beside, f"tfrecords/{dataset}")}
                plan = make_plan(make_config(raw, origin="", find_format=find_format))
        except (ConfigError, FormatError, InputError) as error:
            problem = str(error)
    return _Candidate(name, recognized, raw, plan, problem)


def _offer_splits(sources: Mapping[str, Mapping[str, Any]], *, raw: Mapping[str, Any]) -> str:
    """Names the files that name no split, unlike others, and the config that makes them one."""
    splits = {split or _REST: keys for split, keys in sources.items()}
    offered = {"name": raw["name"], "version": raw["version"], "splits": splits}
    text = dump_yaml(
        msgspec.to_builtins(offered | {"output": raw["output"]}),
        default_flow_style=True,
        width=_ONE_LINE,
    )
    named = {file for split in sources if split for file in _values(sources[split])}
    files = [file for file in _values(sources[""]) if file not in named]
    return (
        f"{' and '.join(files)} {'names' if len(files) == 1 else 'name'} no split, and others name "
        f"{', '.join(filter(None, sources))}; if no image is in both, this config makes a split of "
        f"its own: `{text.strip()}`"
    )


def _values(source: Mapping[str, Any]) -> list[str]:
    """Returns the paths and other texts of a source, without the name of its format."""
    lists = (it if isinstance(it, list) else [it] for key, it in source.items() if key != "format")
    return [str(value) for values in lists for value in values]


def _overlaps(plan: Plan, *, folder: Folder) -> bool:
    """Whether the output lies in the data: the current folder is that of the data, or in it."""
    try:
        check_apart(plan.output, name="output.path", inputs=[*plan.inputs, folder.location()])
    except UsageError:
        return True
    return False


def _foresee(found: _Candidate, *, folder: Folder) -> _Foreseen:
    """Names the classes, foresees the rejects of a build, and says whether it would be refused.

    Raises:
        ShardbeamError: A build of this config would fail.
    """
    # Imported here: Beam takes a while, and no other part of this command needs it.
    from shardbeam.pipelines.own_folders import own_temporary_files
    from shardbeam.pipelines.preview import (
        count_inputs,
        describe_foreseen,
        foresee,
        warn_of_pointers,
    )
    from shardbeam.transforms.commit.allowance import tolerated_ratio
    from shardbeam.transforms.commit.gate import name_classes
    from shardbeam.transforms.commit.notes import describe_outlines

    own_temporary_files()
    inputs = count_inputs(found.plan)
    run = foresee(inputs, plan=found.plan)
    named = name_classes(run.label_map)
    lines = []
    if number := named["num_classes"]:
        names = list_classes(named["classes"], number=number)
        lines.append(f"{counted(number, 'class', 'classes')}: {names}")
    lines += describe_outlines(run)
    lines += warn_of_pointers(inputs.samples.foreseen)
    lines += (f"will be rejected: {line}" for line in describe_foreseen(inputs))
    excess = run.tolerance.excess(run.splits)
    if not excess:
        return _Foreseen(lines)
    lines += (f"a build will be refused: {line}" for line in excess.values())
    if elsewhere := _find_elsewhere(inputs, folder=folder):
        lines.append(
            f"{elsewhere}: name the folder of all images in the config, or move the images into it"
        )
    if not all(run.splits[split].examples for split in excess):
        # No tolerance helps where nothing is left.
        return _Foreseen(lines)
    lines.append(_TOLERATE)
    rejected = (
        f"{count:,} {reason} in {split}"
        for split in excess
        for reason, count in run.splits[split].rejected.items()
    )
    return _Foreseen(
        lines,
        f"rejects: {{max_ratio: {tolerated_ratio(run.splits):g}}}  # let these pass: "
        f"{', '.join(rejected)}",
    )


def _find_elsewhere(inputs: InputCounts, *, folder: Folder) -> str:
    """Describes where missing images may be; empty if few are missing, or nothing is found."""
    for split, counts in inputs.splits.items():
        missing = counts.rejected.get(Reason.MISSING_IMAGE.value, 0)
        if missing <= _MANY_MISSING * (counts.images + missing):
            continue
        for reject in inputs.samples.first_rejects.get(split, ()):
            if reject.reason is Reason.MISSING_IMAGE and (paths := folder.named_like(reject.key)):
                return f"{reject.key} is missing, and there is {paths[0]}"
    return ""


def _describe(found: _Candidate, *, folder: Folder) -> Iterator[str]:
    """Describes what the config reads, which files it leaves out, and what else may be meant."""
    roles = list(_find_roles(found, folder=folder))
    images = [path for path, role in roles if role is Role.IMAGE]
    others = [path for path, role in roles if role is Role.OTHER]
    parts = [found.recognized.what, *([counted(len(images), "image")] if images else [])]
    splits = found.plan.dataset.splits
    named = f"split{'' if len(splits) == 1 else 's'} {', '.join(splits)}"
    yield f"{found.name}: {', '.join(parts)}; {named}"
    if others:
        yield f"not read: {counted(len(others), 'other image file')}, such as {others[0]}"
    yield from found.recognized.notes
    files = [uri for source in found.plan.sources for uri in source.format.annotation_files()]
    yield from describe_incomplete(files)
    read = {path for path in folder.files if absolute_path(folder.uri(path)) in files}
    yield from describe_damaged(folder, read=read)
    if len(splits) == 1:
        yield from _name_split_folders(images, found=found, folder=folder)


def _name_split_folders(
    images: Iterable[str], *, found: _Candidate, folder: Folder
) -> Iterator[str]:
    """Names folders such as `a/train` and `a/val` whose images are all in one split."""
    by_parent: dict[str, set[str]] = {}
    for path in images:
        parts = path.split("/")[:-1]
        for depth, part in enumerate(parts):
            if is_split_name(part):
                by_parent.setdefault("/".join(parts[:depth]), set()).add(part)
    for parent, names in by_parent.items():
        if len(names) > 1:
            paths = ", ".join(sorted(posixpath.join(parent, name) for name in names))
            advice = ""
            if parent and len(by_parent) == 1 and found.recognized.rank in _BY_FOLDERS:
                advice = f"; for splits: shardbeam init {shlex.quote(folder.uri(parent))}"
            yield f"one split holds the images of {paths}{advice}"
            return


def _find_roles(found: _Candidate, *, folder: Folder) -> Iterator[tuple[str, Role]]:
    """Yields the images of a folder, and what each is to a candidate's config."""
    roots = [
        (source.format, index, uri)
        for source in found.plan.sources
        for index, root in enumerate(source.format.roots())
        for uri in expand_root(root)
    ]
    for path in folder.images:
        yield path, _role(absolute_path(folder.uri(path)), roots=roots)


def _role(uri: str, *, roots: Iterable[tuple[Format, int, str]]) -> Role:
    """Says what a file is to the first root that it lies below: a folder or an archive."""
    for one, index, root in roots:
        below = relative_path(uri, root=root)
        if below and listing_exclusion(below) is None:
            return one.place(below, root=index).role
    return Role.OTHER


def _explain(likely: list[_Candidate], *, folder: Folder, only: str | None) -> str:
    zipped = {path for path in folder.files if folder.zip_of(path)}
    held = _describe_files(path for path in folder.files if path not in zipped)
    if zipped:
        inside = f"{len(folder.zips):,} .zip with {_describe_files(zipped)}"
        held = f"{held}, {inside}" if held else inside
    if not likely:
        what = f"no {only} dataset" if only else "no dataset"
        hint = (
            suggest_zip(folder)
            or explain_unrecognized(folder)
            or "docs/reference/formats says what each format expects"
        )
        return f"{what} is recognized here; it holds {held}; {hint}"
    if len(likely) > 1:
        seen = "; ".join(
            f"{each.name} ({each.recognized.what}{f', but {each.problem}' if each.problem else ''})"
            for each in likely
        )
        return f"several formats fit; choose one with --format, or name a folder inside: {seen}"
    (only_one,) = likely
    fix = f"to write the config yourself, see its keys: `shardbeam formats {only_one.name}`"
    if hint := suggest_zip(folder):
        fix = f"{hint}; {fix}"
    recognized = only_one.recognized
    lacks_column = recognized.rank == TABLE and recognized.problem and "" in recognized.sources
    if (lacks_column or _lacks_key(only_one)) and (command := _as_command(only_one)):
        fix = f"add that to this command: `{command}`"
    return f"it looks like {only_one.name} ({recognized.what}), but {only_one.problem}; {fix}"


def _describe_files(paths: Iterable[str]) -> str:
    """Counts files by their extensions: `12 .jpg, 1 .json`."""
    kinds = Counter(os.path.splitext(path)[1].lower() or "without extension" for path in paths)
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(_SHOWN))


def _lacks_key(found: _Candidate) -> bool:
    """Whether all that is missing is a key of the candidate's format, which the problem names."""
    named = re.match(r"(?:config: )?(?:(?:source|splits\.\w+)\.)?(\w+): ", found.problem)
    if named is None or named[1] not in source_flags(find_format(found.name)):
        return False
    return all(named[1] not in source for source in found.recognized.sources.values())


def _as_command(found: _Candidate) -> str:
    """Writes a candidate with one source as a command; empty if it has several."""
    splits = found.raw.get("splits", {"": found.raw.get("source")})
    if len(splits) != 1:
        return ""
    ((split, source),) = splits.items()
    words = ["shardbeam", "build", *_as_flags(source)]
    words += ["--split", split] if split not in ("", "train") else []
    return shlex.join([*words, "--output", found.raw["output"]["path"]])


def _as_flags(source: Mapping[str, Any]) -> Iterator[str]:
    """Writes a source of a config as a format and flags."""
    yield source["format"]
    for key, value in source.items():
        for word in value if isinstance(value, list) else [value]:
            if key != "format":
                yield from (f"--{key.replace('_', '-')}", str(word))


def _write_yaml(found: _Candidate, *, heading: Iterable[str], tolerance: str) -> str:
    """Writes a config, with a description and with common keys as comments.

    Args:
        found: The dataset.
        heading: The lines of the description.
        tolerance: The key that a build needs to tolerate its rejects, if it needs one. It is never
            active, because only people can say whether the rest of the dataset is enough.
    """
    dumped = dump_yaml(
        # A copy, because YAML would write a list that two sources share as an alias.
        msgspec.to_builtins(found.raw),
        default_flow_style=None,
        width=_ONE_LINE,
    )
    comments = "".join(f"# {line}\n" for line in (*_options(found), tolerance or _TOLERANCE))
    described = "".join(f"# {escape(line)}\n" for line in heading)
    return (
        f"{described}"
        f"{_NEXT.decode()}\n"
        f"{dumped}"
        f"{_write_unannotated(found.plan)}"
        "\n# More keys; docs/reference/config.md lists all.\n"
        f"{comments}"
    )


def _write_unannotated(plan: Plan) -> str:
    """Writes what happens to images without annotations, if the format has such images."""
    (rule,) = {source.format.UNANNOTATED for source in plan.sources}
    if rule == "keep" and Kind.DETECTION not in plan.encoder.kinds:
        return ""
    return f"unannotated: auto  # {_UNANNOTATED[rule]}\n"


def _options(found: _Candidate) -> Iterator[str]:
    if "source" in found.raw:
        yield "fractions: {train: 0.8, validation: 0.2}  # divide the images, about 80 and 20 %"
    has_masks = any("_masks" in source.format.__struct_fields__ for source in found.plan.sources)
    if has_masks and Kind.DETECTION in found.plan.encoder.kinds:
        yield "masks: png  # write a mask for each object, as a PNG"
    yield "image: {max_side: 1024}  # resize larger images to this"
    yield "labels: {ids: contiguous}  # number the classes without gaps"
