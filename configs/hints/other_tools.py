"""What the flags and keys of other tools are called here: one table.

Its words come from TFDS, Ultralytics, img2dataset, Hugging Face, Roboflow, labelling tools and
programs like make. A word that Shardbeam itself defines for a command comes before the table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple


class Meaning(NamedTuple):
    """What a word of another tool is here.

    Attributes:
        flags: What to write on a command line; the first one that the command has is named.
        key: The key of a config, or what to write there. Of several, divided by `|`, the first one
            that may stand there is named. Empty for that of a flag alone.
        note: What to do instead, if there is no such flag or key.
        build: What to do instead in `build` and `plan`, before their flags.
    """

    flags: tuple[str, ...] = ()
    key: str = ""
    note: str = ""
    build: str = ""


_FRACTIONS = "--fractions train=0.8,validation=0.2"
_RESIZE = "--set 'image.resize={width: 640, height: 640, fit: pad}'"
_NO_MODEL = "no model is run here; `shardbeam report --predictions FILE` reads what one predicted"
_AUGMENTED = (
    "images are written as they are; change them when you read them (docs/guide/reading.md)"
)

# Each row has the words, with `-` between them, and their meaning.
_TABLE = (
    # The command and its input.
    (
        "format type dataset-type input-format annotation-format annotations-format label-format "
        "ann-format annotation-type coco yolo voc csv",
        Meaning(
            flags=("--format", "--container"),
            key="source: {format: ...}",
            build="the format comes after the command: `shardbeam build FORMAT ...`",
        ),
    ),
    (
        "config cfg c config-file config-path yaml data-yaml",
        Meaning(build="the config comes after the command: `shardbeam build CONFIG.yaml`"),
    ),
    (
        "input in i input-dir input-path input-folder img imgs imdir image-dir img-dir image-path "
        "image-folder images-dir images-path images-folder img-path images-root img-root picture "
        "pictures photos",
        Meaning(flags=("--images",), key="images|root|image_root|tars"),
    ),
    (
        "data data-dir data-path data-root dataset datasets dataset-dir dataset-path src "
        "source-dir dir folder directory",
        Meaning(
            note="--images names the images, and --output the dataset; `shardbeam init DIR` looks "
            "at a folder and writes a config"
        ),
    ),
    (
        "ann anns annotation ann-file ann-dir ann-path annotation-file annotation-dir "
        "annotation-path annotations-file annotations-dir annotations-path json-file label-dir "
        "label-file label-path labels-dir labels-file labels-path gt ground-truth xml-dir",
        Meaning(flags=("--annotations",), key="annotations"),
    ),
    (
        "names label-names class-names classes-file class-file class-list label-map labelmap "
        "label-map-path label-list names-file labels.names labels.map labels.classes categories",
        Meaning(
            note="names of classes come from the annotations, or from the file that `classes` of "
            "some formats names; labels.include chooses among them, labels.merge renames them"
        ),
    ),
    (
        "nc num-classes n-classes number-of-classes",
        Meaning(note="the classes are counted"),
    ),
    (
        "url urls url-list url-col download kaggle api-key workspace",
        Meaning(note="nothing is downloaded; download it first, and name the folder"),
    ),
    ("recursive r", Meaning(note="folders are always read with all that is in them")),
    (
        "ext exts extension extensions image-ext img-ext suffix",
        Meaning(note="images are found by all usual extensions"),
    ),
    (
        "bbox-format bbox-mode box-mode box-type bbox-type coord-format",
        Meaning(flags=("--box-format",), key="box_format"),
    ),
    ("normalized is-normalized", Meaning(flags=("--box-units fraction",), key="box_units")),
    ("sep separator", Meaning(flags=("--delimiter",), key="delimiter")),
    (
        "x-col img-col image-col path-column path-col file-column filename-column filename-col",
        Meaning(flags=("--image-column",), key="image_column"),
    ),
    (
        "y-col label-col class-col class-column target-column label-field",
        Meaning(flags=("--label-column",), key="label_column"),
    ),
    (
        "caption-col text-column text-col",
        Meaning(flags=("--caption-column",), key="caption_column"),
    ),
    # The output.
    (
        "out o outdir out-dir out-path output-dir output-path output-file output-folder dest "
        "destination target to save save-dir save-path result-dir results-dir tfrecord-dir "
        "tfrecords-dir export-dir output.dir output.folder output.directory",
        Meaning(flags=("--output",), key="output.path"),
    ),
    ("root-dir", Meaning(flags=("--root",), key="root|images")),
    ("path", Meaning(flags=("--output", "--images"))),
    (
        "source.path source.dir source.folder source.data",
        Meaning(key="images|root|image_root|tars|data|tfrecords"),
    ),
    (
        "dataset-name builder-name project-name prefix basename title",
        Meaning(flags=("--name",), key="name"),
    ),
    ("dataset-version ver tag release", Meaning(flags=("--version",), key="version")),
    (
        "shards nshards n-shards num-shards-train number-of-shards total-shards shard-count "
        "output.shards num-files",
        Meaning(flags=("--num-shards",), key="output.num_shards"),
    ),
    (
        "shardsize max-shard-size shard-mb maxsize shard-bytes",
        Meaning(flags=("--shard-size-mb",), key="output.shard_size_mb"),
    ),
    (
        "examples-per-shard images-per-shard samples-per-shard number-sample-per-shard maxcount "
        "records-per-shard",
        Meaning(
            flags=("--num-shards or --shard-size-mb",),
            key="output.num_shards or output.shard_size_mb",
        ),
    ),
    (
        "output-format file-format out-format output.format output-type container-type writer "
        "backend",
        Meaning(flags=("--container", "--format"), key="output.container"),
    ),
    (
        "compress compression gzip gz compression-type output.compression zip",
        Meaning(note="shards are not compressed, because images are already"),
    ),
    (
        "push-to-hub hub repo-id token upload",
        Meaning(note="nothing is uploaded; `--container hf_parquet` writes files for the Hub"),
    ),
    ("bucket", Meaning(note="name it in the path: --output gs://BUCKET/FOLDER")),
    (
        "force f clobber exist-ok replace force-overwrite overwrite-output force-rerun rerun "
        "allow-overwrite",
        Meaning(flags=("--overwrite",)),
    ),
    (
        "clean clear delete remove purge reset rm refresh",
        Meaning(note="no command deletes files of yours; --overwrite replaces a dataset"),
    ),
    (
        "resume continue restart incremental incremental-mode checkpoint skip-existing",
        Meaning(
            note="a build that was interrupted goes on where it was: run the same command again"
        ),
    ),
    (
        "append add-to",
        Meaning(
            note="nothing is added to a dataset; name all sources, and --reuse PREVIOUS copies the "
            "shards that did not change"
        ),
    ),
    # Splits.
    (
        "train val valid test validation train-size train-ratio train-split train-frac "
        "train-fraction train-percent val-size val-ratio val-split val-frac val-fraction "
        "val-percent valid-size validation-size validation-split validation-ratio test-size "
        "test-ratio test-split test-frac test-percent split-ratio split-ratios split-size ratio "
        "ratios proportions holdout",
        Meaning(flags=(_FRACTIONS,), key="fractions"),
    ),
    (
        "fold folds kfold k-fold num-folds cv",
        Meaning(flags=("--fractions a=0.2,b=0.2,...",), key="fractions"),
    ),
    ("stratify-by stratified-split", Meaning(flags=("--stratify",), key="stratify")),
    (
        "random-state random-seed rng shuffle-seed seed-value",
        Meaning(flags=("--seed",), key="seed"),
    ),
    (
        "shuffle no-shuffle shuffle-buffer shuffle-files shuffle-buffer-size",
        Meaning(note="Examples are always in a random order, the same for each `seed`"),
    ),
    (
        "max-examples max-examples-per-split max-samples max-images max-num num-samples n-samples "
        "num-examples num-images sample samples subsample take top head first count num n "
        "number-of-images",
        Meaning(flags=("--limit", "--examples"), key="limit"),
    ),
    # Classes and objects.
    (
        "drop",
        Meaning(
            flags=("--set labels.exclude=CLASS, or --set features.drop=KEY",),
            key="labels.exclude or features.drop",
        ),
    ),
    (
        "exclude-class exclude-classes exclude-label exclude-labels drop-class drop-classes "
        "drop-labels ignore-class ignore-classes ignore-labels skip-class skip-classes "
        "remove-class remove-classes labels.drop labels.ignore labels.skip labels.remove",
        Meaning(flags=("--set labels.exclude=CLASS",), key="labels.exclude"),
    ),
    (
        "include-class include-classes keep-class keep-classes only filter filter-class "
        "filter-classes filter-labels select-classes labels.keep labels.only labels.filter "
        "labels.select",
        Meaning(flags=("--set labels.include=CLASS",), key="labels.include"),
    ),
    (
        "class-map label-mapping class-mapping map-classes remap rename-classes merge-classes "
        "labels.rename labels.remap labels.alias labels.mapping",
        Meaning(flags=("--set 'labels.merge={new: [old]}'",), key="labels.merge"),
    ),
    (
        "rename",
        Meaning(
            flags=("--set 'labels.merge={new: [old]}', or --set 'features.rename={old: new}'",),
            key="labels.merge or features.rename",
        ),
    ),
    (
        "single-cls single-class class-agnostic one-class",
        Meaning(flags=("--set 'labels.merge={object: [cat, dog]}'",), key="labels.merge"),
    ),
    (
        "zero-index zero-indexed zero-based one-index one-based start-id id-offset class-offset "
        "label-offset first-class",
        Meaning(flags=("--first-id",), key="labels.first_id"),
    ),
    ("reindex remap-ids contiguous", Meaning(flags=("--ids contiguous",), key="labels.ids")),
    (
        "min-size min-box min-box-size min-bbox min-bbox-size min-object-size",
        Meaning(
            flags=("--min-side-px or --min-area-px",),
            key="labels.min_side_px or labels.min_area_px",
        ),
    ),
    (
        "keep-empty include-empty allow-empty skip-empty drop-empty filter-empty include-negatives "
        "negatives background-images keep-unannotated",
        Meaning(flags=("--unannotated",), key="unannotated"),
    ),
    ("polygons segments segmentation", Meaning(flags=("--masks png",), key="masks: png")),
    (
        "crop-objects crops per-object per-box per-annotation",
        Meaning(flags=("--example-per annotation",), key="example_per: annotation"),
    ),
    (
        "conf conf-thres iou iou-thres score min-score confidence confidence-threshold threshold "
        "nms model weights epochs optimizer lr",
        Meaning(note=_NO_MODEL),
    ),
    # Images.
    (
        "resize size image-size img-size imgsz input-size target-size input-shape image-shape "
        "image.size",
        Meaning(
            flags=("--max-side, or --set 'image.resize={width: 640, height: 640}'",),
            key="image.max_side or image.resize",
        ),
    ),
    (
        "width height letterbox pad padding stretch crop center-crop resize-mode "
        "keep-aspect-ratio aspect-ratio rect image.width image.height image.letterbox image.pad "
        "image.mode image.fit",
        Meaning(flags=(_RESIZE,), key="image.resize"),
    ),
    (
        "max-size max-dim max-width max-height max-image-size long-side longest-side longer-side "
        "image.max-size image.max-width image.max-height",
        Meaning(flags=("--max-side",), key="image.max_side"),
    ),
    (
        "jpeg-quality jpg-quality encode-quality image.jpeg-quality",
        Meaning(flags=("--quality",), key="image.quality"),
    ),
    (
        "image-format img-format encode-format png jpg jpeg image.format image.type",
        Meaning(flags=("--encoding",), key="image.encoding"),
    ),
    ("exif auto-orient exif-rotate", Meaning(flags=("--orientation",), key="image.orientation")),
    (
        "augment augmentation augmentations flip rotate mosaic normalize mean std grayscale gray "
        "channels color-mode",
        Meaning(note=_AUGMENTED),
    ),
    # Rejects and duplicates.
    (
        "max-rejects max-errors max-failures max-reject-ratio tolerance ignore-errors "
        "ignore-missing skip-errors skip-invalid skip-corrupt allow-errors allow-missing "
        "error-threshold keep-going max-missing",
        Meaning(flags=("--max-ratio",), key="rejects.max_ratio"),
    ),
    ("fail-fast strict", Meaning(flags=("--max-ratio 0",), key="rejects: {max_ratio: 0}")),
    ("no-verify skip-verify", Meaning(flags=("--verify none",), key="image: {verify: none}")),
    (
        "dedup dedupe deduplicate deduplication no-duplicates remove-duplicates drop-duplicates "
        "unique duplicates.drop duplicates.remove",
        Meaning(
            flags=("--exclude DATASET/duplicates.parquet, of an earlier build",), key="exclude"
        ),
    ),
    (
        "near-dup near-duplicates near-duplicate similarity",
        Meaning(flags=("--near",), key="duplicates.near"),
    ),
    ("leakage check-leaks", Meaning(flags=("--leaks",), key="duplicates.leaks")),
    # The run.
    (
        "workers num-workers n-workers max-workers jobs j n-jobs num-jobs num-proc nproc "
        "num-processes n-processes processes-count parallel cpus num-cpus ncpu cores pool-size",
        Meaning(flags=("--processes", "--workers", "--threads")),
    ),
    ("thread-count num-threads n-threads", Meaning(flags=("--threads",))),
    ("mem ram memory-limit max-memory", Meaning(flags=("--memory",))),
    (
        "dry-run dryrun simulate check validate what-if just-print no-op",
        Meaning(build="`shardbeam plan` says what `build` would write, and writes nothing"),
    ),
    (
        "quiet q silent s no-progress progress progress-bar",
        Meaning(note="progress is drawn only in a terminal, and `2>/dev/null` drops it"),
    ),
    (
        "debug v verbosity log-level loglevel logging",
        Meaning(flags=("--verbose",), note="this command logs nothing"),
    ),
    (
        "yes y assume-yes no-input no-confirm confirm interactive noninteractive",
        Meaning(note="no command asks a question"),
    ),
    (
        "gpu gpus cuda device devices fp16 half amp accelerator",
        Meaning(note="no GPU is used"),
    ),
    (
        "batch-size batch bs batches repeat prefetch drop-last",
        Meaning(note="batches are made when you read a dataset (docs/guide/reading.md)"),
    ),
    (
        "cache cache-dir tmp tmp-dir temp-dir work-dir workdir staging-dir",
        Meaning(note="unfinished files lie in the output's folder, and nothing is cached"),
    ),
    (
        "retry retries max-retries timeout",
        Meaning(note="requests are repeated without being asked"),
    ),
    (
        "checksum checksums md5 hash sha256 register-checksums no-checksum",
        Meaning(note="checksums are always written; `shardbeam verify` compares them"),
    ),
    (
        "visualize visualise plot preview display report",
        Meaning(note="`shardbeam report` and `shardbeam show` draw pictures of a dataset"),
    ),
    ("export", Meaning(note="`shardbeam export` is a command of its own")),
    ("convert", Meaning(note="`shardbeam convert` is a command of its own")),
    ("statistics stats summary", Meaning(note="`shardbeam stats` counts what is in a dataset")),
    # Flags of Shardbeam that are no keys.
    *(
        (word, Meaning(flags=(f"--{word}",)))
        for word in (
            *("overwrite", "reuse", "if-changed", "processes", "threads", "memory", "read-ahead"),
            *("anonymous", "wait", "json", "verbose", "runner", "project", "region"),
        )
    ),
    # The other commands.
    ("id row number idx nth", Meaning(flags=("--image",))),
    ("html page", Meaning(flags=("--output",))),
    ("deep full thorough decode-images", Meaning(flags=("--decode",))),
    ("fast shallow", Meaning(flags=("--quick",))),
    ("fix heal", Meaning(flags=("--repair",))),
)


def explain_flag(flag: str, *, is_known: Callable[[str], bool]) -> str:
    """Says what a flag of another tool is here: the end of a sentence, or an empty text.

    Args:
        flag: The flag, with its dashes.
        is_known: Whether the command has a flag.
    """
    meaning = _meanings().get(_plain(flag))
    if meaning is None:
        return ""
    if meaning.build and is_known("--set"):
        return f"; {meaning.build}"
    for written in meaning.flags:
        if all(map(is_known, re.findall(r"--[a-z][a-z-]*", written))):
            return f"; did you mean {written}?"
    return f"; {meaning.note}" if meaning.note else ""


def explain_key(names: Iterable[str], *, siblings: Mapping[str, str]) -> str:
    """Says what a key of another tool's is here: the end of a sentence, or an empty text.

    Args:
        names: The key with the one that it is in (`labels.drop`), and alone.
        siblings: `{key beside it: its path}`.
    """
    for name in names:
        meaning = _meanings().get(_plain(name))
        if meaning is None:
            continue
        if meaning.key:
            keys = meaning.key.split("|")
            key = next((key for key in keys if key in siblings), keys[0])
            return f"; did you mean {siblings.get(key, key)}?"
        if meaning.flags:
            return f"; did you mean the flag {meaning.flags[0]}?"
        return f"; {meaning.build or meaning.note}"
    return ""


def _plain(word: str) -> str:
    return word.lstrip("-").lower().replace("_", "-")


@functools.cache
def _meanings() -> Mapping[str, Meaning]:
    return {word: meaning for words, meaning in _TABLE for word in words.split()}
