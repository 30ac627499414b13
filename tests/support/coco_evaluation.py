"""COCO's own evaluation, which shows whether annotations are the same."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping

import numpy as np
import pytest

from tests.support.builds import Json

PERFECT = {"AP": 1.0, "AP50": 1.0, "AR": 1.0}


def evaluate(truth: Json, detections: list[Json], kind: str) -> Mapping[str, float]:
    """Evaluates detections with pycocotools."""
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truth = coco.COCO()
        ground_truth.dataset = json.loads(json.dumps(truth))
        for each in ground_truth.dataset["annotations"]:
            each.setdefault("iscrowd", 0)
        ground_truth.createIndex()
        # pycocotools changes the detections that it is given.
        results = ground_truth.loadRes([dict(each) for each in detections])
        evaluation = cocoeval.COCOeval(ground_truth, results, kind)
        evaluation.params.maxDets = [1, 10, 200] if kind != "keypoints" else [200]
        if kind == "keypoints":
            number = max(len(each["keypoints"]) // 3 for each in detections)
            evaluation.params.kpt_oks_sigmas = np.full(number, 0.05)
        evaluation.evaluate()
        evaluation.accumulate()
    # precision: overlaps x recalls x categories x areas x numbers of detections
    precision = evaluation.eval["precision"][..., 0, -1]
    recall = evaluation.eval["recall"][..., 0, -1]
    return {
        "AP": precision[precision > -1].mean(),
        "AP50": precision[0][precision[0] > -1].mean(),
        "AR": recall[recall > -1].mean(),
    }
