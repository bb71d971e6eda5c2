"""Train a U-Net, whose skips cross the stages, to take noise out of pictures.

    torchrun --nproc-per-node 2 examples/unet.py

A pipeline of layers in a list cannot hold such a model: the first layer's output is
needed again by the last. Here it is left as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from training import parser, train

from partitioner import partition

MICRO_BATCH, MICRO_BATCHES, SIDE = 4, 4, 32


def block(before: int, after: int) -> nn.Sequential:
    """Two convolutions; a norm that knows no batch, so that micro-batches are alike."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1),
        nn.GroupNorm(4, after),
        nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Three levels down, three up, with a skip at each."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(map(block, [3, *widths], widths))
        self.middle = block(widths[-1], widths[-1])
        narrower = [*widths[-2::-1], width]
        self.up = nn.ModuleList(
            block(2 * before, after)
            for before, after in zip(reversed(widths), narrower, strict=True)
        )
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Take (samples, 3, height, width); return the same without noise."""
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up in self.up:
            x = nn.functional.interpolate(x, scale_factor=2)
            x = up(torch.cat([x, skips.pop()], 1))
        cleaned: Tensor = self.last(x)
        return cleaned


class Stripes(Dataset[tuple[Tensor, Tensor]]):
    """Pictures of stripes: (noisy, clean)."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        angle, phase = torch.rand(2, generator=generator) * 3
        place = torch.arange(SIDE) / 3
        clean = torch.sin(place[:, None] * angle.cos() + place * angle.sin() + phase)
        clean = clean.expand(3, SIDE, SIDE).clone()
        return clean + 0.5 * torch.randn(clean.shape, generator=generator), clean


def main() -> None:
    """Train this process's stage and print the losses."""
    options = parser(__doc__).parse_args()

    torch.manual_seed(0)
    plan = partition(
        UNet(),
        options.stages,
        example_inputs=torch.zeros(MICRO_BATCH, 3, SIDE, SIDE),
        micro_batches=MICRO_BATCHES,
    )
    engine, *_ = plan.initialize(
        nn.functional.mse_loss,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-3),
        config={"steps_per_print": 10**9},
    )
    train(engine, Stripes(), options.steps)


if __name__ == "__main__":
    main()
