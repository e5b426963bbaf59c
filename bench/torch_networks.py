"""Small torch networks of kinds that transformers has no configuration for: recurrent, graph, segmentation, detection."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return convolution, batch normalisation and SiLU."""
    padding = dilation * (size // 2)
    layer = nn.Conv2d(inputs, outputs, size, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU())


class Outputs(nn.Module):
    """A model of transformers that returns the results of the given names alone."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        results = self.model(*arguments)
        return tuple(getattr(results, name) for name in self.names)


class Tagger(nn.Module):
    """Tags the words of a sentence by a bidirectional recurrent network."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, width)
        self.cells = cell(width, width, layers, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * width, 32)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.cells(self.words(ids))
        tags: Tensor = self.tags(states)
        return tags


class GraphConvolutions(nn.Module):
    """Graph convolutions over a dense, normalised adjacency matrix."""

    def __init__(self, features: int = 128, width: int = 256, layers: int = 3) -> None:
        super().__init__()
        sizes = [features, *[width] * layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.classes = nn.Linear(width, 16)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        edges = torch.sigmoid(adjacency)
        edges = edges / edges.sum(-1, keepdim=True)
        for layer in self.layers:
            nodes = torch.relu(edges @ layer(nodes))
        classes: Tensor = self.classes(nodes)
        return classes


class GraphAttention(nn.Module):
    """Graph attention with several heads over a dense mask of edges."""

    def __init__(self, features: int = 128, heads: int = 4, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.inner = nn.ModuleList(nn.Linear(features if i == 0 else heads * width, heads * width, bias=False) for i in range(layers))
        self.sources = nn.ParameterList(torch.randn(heads, width) for _ in range(layers))
        self.targets = nn.ParameterList(torch.randn(heads, width) for _ in range(layers))

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        absent = adjacency < 0
        for layer, source, target in zip(self.inner, self.sources, self.targets, strict=True):
            values = layer(nodes).view(nodes.shape[0], self.heads, self.width)
            scores = (values * source).sum(-1).T.unsqueeze(2) + (values * target).sum(-1).T.unsqueeze(1)
            scores = torch.where(absent, -1e9, nn.functional.leaky_relu(scores, 0.2))
            nodes = nn.functional.elu((torch.softmax(scores, -1) @ values.transpose(0, 1)).transpose(0, 1).flatten(1))
        return nodes


class EncoderDecoder(nn.Module):
    """A segmentation network: halved three times, doubled three times, with skip connections."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.first = nn.Sequential(convolution(3, width), convolution(width, width))
        self.down = nn.ModuleList(nn.Sequential(convolution(a, b), convolution(b, b)) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.joined = nn.ModuleList(convolution(2 * a, a) for a in sizes[:-1])
        self.classes = nn.Conv2d(width, 8, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels = [self.first(image)]
        for layer in self.down:
            levels.append(layer(nn.functional.max_pool2d(levels[-1], 2)))
        x = levels[-1]
        for up, joined, skip in reversed(list(zip(self.up, self.joined, levels[:-1], strict=True))):
            x = joined(torch.cat([up(x), skip], 1))
        classes: Tensor = self.classes(x)
        return classes


class Split(nn.Module):
    """Convolutions on one half of the channels, all intermediate results joined (as in one-stage detectors)."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        half = channels // 2
        self.first = convolution(channels, channels, 1)
        self.blocks = nn.ModuleList(nn.Sequential(convolution(half, half), convolution(half, half)) for _ in range(blocks))
        self.last = convolution(half * (2 + blocks), channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        joined: Tensor = self.last(torch.cat(parts, 1))
        return joined


class OneStageDetector(nn.Module):
    """A one-stage detector: strided backbone, pooled pyramid, boxes decoded on a grid at two scales."""

    def __init__(self, width: int = 24, classes: int = 20) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, width, stride=2), convolution(width, 2 * width, stride=2), Split(2 * width, 1))
        self.middle = nn.Sequential(convolution(2 * width, 4 * width, stride=2), Split(4 * width, 2))
        self.deep = nn.Sequential(convolution(4 * width, 8 * width, stride=2), Split(8 * width, 1))
        self.narrow = convolution(8 * width, 4 * width, 1)
        self.wide = convolution(16 * width, 8 * width, 1)
        self.merged = convolution(12 * width, 4 * width)
        self.heads = nn.ModuleList(nn.Conv2d(c, 4 + classes, 1) for c in (4 * width, 8 * width))

    def forward(self, image: Tensor) -> Tensor:
        middle = self.middle(self.stem(image))
        deep = self.narrow(self.deep(middle))
        pooled = [deep]
        for _ in range(3):
            pooled.append(nn.functional.max_pool2d(pooled[-1], 5, 1, 2))
        deep = self.wide(torch.cat(pooled, 1))
        middle = self.merged(torch.cat([middle, nn.functional.interpolate(deep, scale_factor=2.0)], 1))
        predictions = []
        for head, x in zip(self.heads, (middle, deep), strict=True):
            y = head(x).flatten(2).transpose(1, 2)
            rows = torch.arange(x.shape[2]).repeat_interleave(x.shape[3])
            columns = torch.arange(x.shape[3]).repeat(x.shape[2])
            centre = torch.stack([columns, rows], -1) + torch.sigmoid(y[..., :2])
            predictions.append(torch.cat([centre, torch.exp(y[..., 2:4]), torch.sigmoid(y[..., 4:])], -1))
        return torch.cat(predictions, 1)


class DilatedContext(nn.Module):
    """Parallel dilated convolutions and a global average, joined and resized (as in atrous pyramids)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, width, stride=2), convolution(width, 2 * width, stride=2))
        self.branches = nn.ModuleList(convolution(2 * width, width, dilation=d) for d in (1, 6, 12, 18))
        self.everywhere = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2 * width, width, 1), nn.ReLU())
        self.last = nn.Sequential(convolution(5 * width, width, 1), nn.Conv2d(width, 10, 1))

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        pooled = self.everywhere(x).expand(-1, -1, x.shape[2], x.shape[3])
        y = self.last(torch.cat([*(branch(x) for branch in self.branches), pooled], 1))
        return nn.functional.interpolate(y, scale_factor=4.0, mode="bilinear", align_corners=False)
