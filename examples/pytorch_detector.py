"""A torchvision detector, fitted to eight images that a DataLoader's processes read."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.15.0", "torchvision==0.29.2"]
# ///

import sys

import torch
import torchvision

import shardbeam

PATH = sys.argv[1]


def collate(pairs):
    """Images differ in size and number of objects, so they stay in lists."""
    images = [torch.from_numpy(image).permute(2, 0, 1) / 255 for image, _ in pairs]
    targets = [
        # The box of a crowd is around many objects, not one.
        {key: torch.from_numpy(each[key][each["iscrowd"] == 0]) for key in ("boxes", "labels")}
        for _, each in pairs
    ]
    return images, targets


def main():
    torch.manual_seed(0)
    # torchvision's class 0 is the background, as in the dataset, whose classes begin with 1.
    examples = shardbeam.open(PATH, split="train", where={"min_objects": 1}).detection()[:8]
    loader = torch.utils.data.DataLoader(
        examples,
        batch_size=4,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        collate_fn=collate,
    )
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=1 + max(shardbeam.class_names(PATH)),
        min_size=128,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    losses = []
    for _ in range(15):
        for images, targets in loader:
            loss = sum(model(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(f"loss: {losses[0]:.2f} -> {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
