"""A network that classifies graphs, and its steps on batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from gnnprof import _device

Batch = Any
"""A `torch_geometric.data.Batch`: the graphs of a step, `y` [B] among them."""

Forward = Callable[[torch.nn.Module, Batch], Tensor]
"""Calls a model with what it takes of a batch; gives log-probabilities [B, C]."""


@dataclass(frozen=True)
class Score:
    """How well a network does on some graphs.

    Attributes:
        loss: Mean negative log-likelihood of the right class, in nats.
        accuracy: Share of the graphs classified rightly, 0..1.
    """

    loss: float
    accuracy: float


class Waiting:
    """Hands out the batches of a loader on a device, and adds up the seconds waited for them.

    Args:
        loader: Gives batches on the CPU: cuts graphs out of the data set and puts them together.
        device: Where they go; the way there is not part of the waiting.
    """

    def __init__(self, loader: Iterable[Batch], device: torch.device) -> None:
        self.seconds = 0.0
        self._loader, self._device = loader, device

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._loader)
        while True:
            start = _device.clock()
            batch = next(batches, None)
            self.seconds += _device.clock() - start
            if batch is None:
                return
            yield batch.to(self._device)


class Classifier:
    """A network on a device, perhaps compiled, perhaps in bfloat16.

    Args:
        net: The network; it is moved to the device.
        forward: How it is called with a batch.
        device: Where it computes.
        bf16: Whether to autocast to bfloat16; the loss is in single precision nevertheless.
        compile: Whether torch compiles the network.
    """

    def __init__(
        self,
        net: torch.nn.Module,
        forward: Forward,
        device: torch.device,
        *,
        bf16: bool = False,
        compile: bool = False,
    ) -> None:
        self.net = net.to(device)
        self.device, self.bf16 = device, bf16
        self._forward = forward
        # A compiled module is a module, which torch.compile's annotation does not tell.
        self.model = cast("torch.nn.Module", torch.compile(net)) if compile else self.net

    def predict(self, batch: Batch) -> Tensor:
        """Return the log-probabilities [B, C] of a batch on the device."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            out = self._forward(self.model, batch)
        return out.float()

    def train_step(self, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        """Forward, loss, backward, optimizer; returns the summed loss of the batch, detached."""
        self.net.train()
        optimizer.zero_grad()
        loss = F.nll_loss(self.predict(batch), batch.y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach() * len(batch.y)

    def train_epoch(self, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> float:
        """Take one step with each batch; returns the mean loss per graph."""
        losses, graphs = [], 0
        for batch in batches:
            losses.append(self.train_step(optimizer, batch))
            graphs += len(batch.y)
        return float(torch.stack(losses).sum()) / graphs

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> Score:
        """Return loss and accuracy; no dropout, no gradients."""
        self.net.eval()
        losses, right, graphs = [], [], 0
        for batch in batches:
            out = self.predict(batch)
            losses.append(F.nll_loss(out, batch.y, reduction="sum"))
            right.append((out.argmax(dim=1) == batch.y).sum())
            graphs += len(batch.y)
        loss, hits = torch.stack(losses).sum(), torch.stack(right).sum()
        return Score(float(loss) / graphs, int(hits) / graphs)

    @torch.no_grad()
    def infer(self, batches: Iterable[Batch]) -> None:
        """One forward pass with each batch, as it is deployed."""
        self.net.eval()
        for batch in batches:
            self.predict(batch)
