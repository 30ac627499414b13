"""KerasHub's RetinaNet, fitted to eight images."""

# /// script
# requires-python = ">=3.11"
# dependencies = ["keras-hub==0.32.0"]
# ///

import sys

import keras
import keras_hub
import numpy as np

import shardbeam

PATH = sys.argv[1]


class Detector(keras_hub.models.RetinaNetObjectDetector):
    """RetinaNet. Keras 3.15 converts boxes in place, which TensorFlow forbids for arguments."""

    def compute_loss(self, x, y, *others, **options):
        return super().compute_loss(x, dict(y), *others, **options)


keras.utils.set_random_seed(0)
pairs = list(shardbeam.open(PATH, split="train", where={"min_objects": 1}).detection()[:8])
images = np.stack([image for image, _ in pairs]) / 255
# A batch needs the same number of boxes for each image; the label -1 stands for none.
most = max(len(target["labels"]) for _, target in pairs)
boxes, labels = np.zeros((len(pairs), most, 4)), np.full((len(pairs), most), -1)
for index, (_, target) in enumerate(pairs):
    number = len(target["labels"])
    boxes[index, :number] = target["boxes"]
    # Classes of objects are numbered from 1 in the dataset, and from 0 in KerasHub.
    labels[index, :number] = target["labels"] - 1

encoder = keras_hub.models.ResNetBackbone(
    input_conv_filters=[64],
    input_conv_kernel_sizes=[7],
    stackwise_num_filters=[64, 128, 256],
    stackwise_num_blocks=[1, 1, 1],
    stackwise_num_strides=[1, 2, 2],
    block_type="basic_block",
    image_shape=images.shape[1:],
)
model = Detector(
    backbone=keras_hub.models.RetinaNetBackbone(
        image_encoder=encoder, min_level=3, max_level=4, use_p5=False
    ),
    num_classes=max(shardbeam.class_names(PATH)),
    bounding_box_format="xyxy",
    pre_logits_num_conv_layers=2,
)
model.compile(optimizer=keras.optimizers.Adam(3e-4), box_loss="auto", classification_loss="auto")
history = model.fit(images, {"boxes": boxes, "labels": labels}, batch_size=4, epochs=12)
losses = history.history["loss"]
print(f"loss: {losses[0]:.2f} -> {losses[-1]:.2f}")
