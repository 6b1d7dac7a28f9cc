"""YOLOv3 (arXiv:1804.02767): Darknet-53 and three detection heads, layers numbered as in the published `yolov3.cfg`."""

from __future__ import annotations

import numpy as np
import onnx

from .net import Weights
from .vision import ImageOptions, Map, VisionNet

STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))  # channels, residual blocks
ANCHORS = (  # width and height in pixels, of the heads at stride 32, 16, 8
    ((116, 90), (156, 198), (373, 326)),
    ((30, 61), (62, 45), (59, 119)),
    ((10, 13), (16, 30), (33, 23)),
)


def yolov3(name: str, options: ImageOptions, weights: Weights, *, decode: bool = False, backbone: bool = False) -> onnx.ModelProto:
    """Outputs are the three raw heads [batch, 3·(5 + classes), H/s, W/s] for s = 32, 16, 8. With `decode` it is one tensor [batch, boxes, 5
    + classes] of box centre and size in pixels, objectness and class probabilities. With `backbone` it is the last map of Darknet-53,
    without heads. Pixels in [0, 1]."""
    if options.image[0] % 32 or options.image[1] % 32:
        raise ValueError(f"{name}: image sides must be multiples of 32, not {options.image[0]}×{options.image[1]}")
    net = Darknet(name, options, weights)
    x = net.block(net.image(normalised=False), 32, 3)
    routes: list[Map] = []
    for channels, blocks in STAGES:
        x = net.block(x, channels, 3, stride=2)
        for _ in range(blocks):
            y = net.block(net.block(x, channels // 2, 1), channels, 3, gamma=0.25)
            x = net.add(x, y)
            net.layer += 1
        routes.append(x)
    if backbone:
        net.output(x.tensor, "features", [options.batch, x.channels, x.height, x.width])
        return net.finish()
    heads: list[Map] = []
    for scale, width in enumerate((512, 256, 128)):
        if scale > 0:
            net.layer += 1  # route back to the middle of the head before
            x = net.upsample(net.block(x, width, 1))
            x = net.concat([x, routes[-1 - scale]])
            net.layer += 2  # upsample, route
        for _ in range(2):
            x = net.block(net.block(x, width, 1), 2 * width, 3)
        x = net.block(x, width, 1)
        y = net.block(x, 2 * width, 3)
        heads.append(net.conv(y, f"module_list.{net.layer}.conv", 3 * (5 + options.classes), 1, gain=0.2))
        net.layer += 2  # convolution, yolo
    if decode:
        net.decode(heads)
    else:
        for head, stride in zip(heads, (32, 16, 8), strict=True):
            net.output(head.tensor, f"output_s{stride}", [options.batch, head.channels, head.height, head.width])
    return net.finish()


class Darknet(VisionNet):
    """Convolution blocks numbered like the layers of a Darknet configuration file."""

    layer = 0

    def block(self, x: Map, channels: int, kernel: int, *, stride: int = 1, gamma: float = 1.4) -> Map:
        name = f"module_list.{self.layer}"
        self.layer += 1
        return self.leaky(self.conv_bn(x, f"{name}.conv", f"{name}.bn", channels, kernel, stride=stride, pad=kernel // 2, gamma=gamma))

    def decode(self, heads: list[Map]) -> None:
        classes = self.options.classes
        boxes = [self.decode_head(head, anchors) for head, anchors in zip(heads, ANCHORS, strict=True)]
        count = sum(3 * head.height * head.width for head in heads)
        self.output(self.op("Concat", *boxes, axis=1), "output", [self.options.batch, count, 5 + classes])

    def decode_head(self, head: Map, anchors: tuple[tuple[int, int], ...]) -> str:
        """[batch, 3·(5 + classes), h, w] → [batch, 3·h·w, 5 + classes], as detectors write it: centre by sigmoid, size by exp."""
        h, w = head.height, head.width
        stride = self.options.image[0] // h
        fields = 5 + self.options.classes
        y = self.op("Reshape", head.tensor, self.ints(-1 if isinstance(self.options.batch, str) else self.options.batch, 3, fields, h, w))
        y = self.op("Transpose", y, perm=[0, 1, 3, 4, 2])
        centre, size, score = self.split(y, 4, (2, 2, fields - 4))
        grid = np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1).astype(np.float32)[None, None]
        priors = np.array(anchors, np.float32).reshape(1, 3, 1, 1, 2)
        centre = self.op("Mul", self.op("Add", self.op("Sigmoid", centre), self.const(grid)), self.scalar(stride))
        size = self.op("Mul", self.op("Exp", size), self.const(priors))
        y = self.op("Concat", centre, size, self.op("Sigmoid", score), axis=-1)
        return self.op("Reshape", y, self.ints(0, -1, fields))
