"""Classify pieces of the standard library by package, with bidirectional linear attention over up to 1,000 bytes."""

import sys
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

import linnet

CLASSES, LONGEST, WIDTH, BATCH = ("asyncio", "email", "unittest", "xml"), 1000, 64, 16


class Classifier(nn.Module):
    """Bytes, a convolution over neighbors, one mixer, and the mean over the real tokens."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH, padding_idx=0)
        self.neighbors = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.mixer = linnet.create_mixer(attention, width=WIDTH, heads=4, causal=False)
        self.output = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(CLASSES)))

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:  # (B, N), (B, N) -> (B, classes)
        x = torch.relu(self.neighbors(self.embedding(ids).mT).mT)
        x = x + self.mixer(x, key_mask=real)
        return self.output((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def draw(texts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Pieces of different lengths, padded with zeros; which of their tokens are real; their classes."""
    classes = torch.randint(len(texts), (BATCH,))
    starts = [int(torch.randint(len(texts[y]) - LONGEST, ())) for y in classes]
    ids = torch.stack([texts[y][start : start + LONGEST] for y, start in zip(classes, starts, strict=True)])
    real = torch.arange(LONGEST) < torch.randint(LONGEST // 2, LONGEST + 1, (BATCH, 1))
    return ids * real, real, classes


def main(steps: int = 150, attention: str = "norm") -> None:
    """Train, then test on every fifth file, which was held out."""
    files = [sorted(Path(sysconfig.get_path("stdlib"), name).rglob("*.py")) for name in CLASSES]
    train = [torch.tensor(list(b"".join(path.read_bytes() for i, path in enumerate(each) if i % 5))) for each in files]
    test = [torch.tensor(list(b"".join(path.read_bytes() for path in each[::5]))) for each in files]
    torch.manual_seed(0)
    model = Classifier(attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        ids, real, classes = draw(train)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids, real), classes).backward()
        optimizer.step()
    with torch.no_grad():
        right = [model(ids, real).argmax(-1) == y for ids, real, y in (draw(test) for _ in range(10))]
    accuracy = torch.cat(right).float().mean()
    print(f"{attention}: accuracy {accuracy:.1%} on held-out files, chance {1 / len(CLASSES):.1%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
