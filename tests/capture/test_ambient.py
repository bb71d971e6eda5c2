"""Global state that a forward sets for a while; gradients computed inside one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from partitioner.capture import capture
from partitioner.errors import DataDependentError
from partitioner.graph import ModelGraph
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.capture import toys
from tests.captured import BATCH, seeded, two_stages


@contextmanager
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)  # not reached if the forward is broken off


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@contextmanager
def precision() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


def doubled_when_saved() -> Any:
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    return hooks(lambda t: t * 2, lambda t: t)


STATES: dict[str, Any] = {
    "default dtype": double,
    "saved tensors hooks": doubled_when_saved,
    "deterministic algorithms": deterministic,
    "matmul precision": precision,
    "attention backends": lambda: sdpa_kernel(SDPBackend.MATH),
    "dispatch modes": lambda: FlopCounterMode(display=False),
}


class Enters(toys.Toy):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with self.state():
            h = torch.sigmoid(h) * (torch.ones(6) / 3).to(h.dtype)
        return self.second(h)


class EntersAround(toys.Toy):
    """Only a module call is inside."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def forward(self, x: Tensor) -> Tensor:
        with self.state():
            h = self.first(x)
        return self.second(h)


def whole(graph: ModelGraph) -> str:
    """The note that says why the inner module runs whole; a cut follows it."""
    (note,) = [text for text in graph.assumptions if "runs as a whole" in text]
    assert note.startswith("inner runs as a whole: ")
    tensors = input_tensors(graph, None)
    for cut in ("before", "inner"):
        assert verify(graph, two_stages(graph, cut), tensors).ok
    return note


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("toy", [Enters, EntersAround])
def test_a_module_that_changes_torchs_state_runs_as_a_whole(name: str, toy: Any):
    graph = capture(seeded(toys.Inside(toy(STATES[name]))), BATCH)
    assert f"it changes torch's {name}" in whole(graph)
    with pytest.raises(DataDependentError, match=name) as caught:
        capture(toy(STATES[name]), BATCH)
    assert "submodule of its own" in caught.value.hint


@pytest.fixture
def state() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(mode=False)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", ["default dtype", "matmul precision"])
@pytest.mark.usefixtures("state")
def test_what_a_broken_off_forward_has_set_is_put_back(name: str):
    with pytest.raises(DataDependentError):
        capture(Enters(STATES[name]), BATCH)
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("state")
def test_state_that_is_left_changed_is_seen():
    class Leaves(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            torch.set_float32_matmul_precision("medium")
            return h

    with pytest.raises(DataDependentError, match="matmul precision"):
        capture(toys.Inside(Leaves()), BATCH)


def test_a_default_device_around_a_module_keeps_its_caller_whole():
    graph = capture(toys.Inside(EntersAround(lambda: torch.device("cpu"))), BATCH)
    assert "default device" in whole(graph)


def test_state_that_was_set_before_is_no_change():
    with sdpa_kernel(SDPBackend.MATH):
        graph = capture(seeded(toys.Inside(nn.Tanh())), BATCH)
    assert not any("runs as a whole" in note for note in graph.assumptions)


def test_torchs_own_hiding_of_modes_is_no_change():
    class FromNumpy(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) * torch.from_numpy(np.ones(6, np.float32)))

    graph = capture(seeded(toys.Inside(FromNumpy())), BATCH)
    assert not any("runs as a whole" in note for note in graph.assumptions)


class Energy(toys.Toy):
    """A force field: the gradient of an energy is part of the result."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            h = self.first(x).requires_grad_()
            energy = (self.second(h.tanh()) ** 2).sum()
            if self.how == "grad":
                (force,) = torch.autograd.grad(energy, h, create_graph=True)
                return self.second(force + h)
            h = h.detach().requires_grad_()
            energy = (h.tanh() ** 2).sum()
            if self.how == "backward":
                energy.backward()
            else:
                torch.autograd.backward(energy)
        assert h.grad is not None
        return self.second(h.grad + self.first(x))


@pytest.mark.parametrize("how", ["grad", "backward", "function"])
def test_a_module_that_computes_gradients_runs_as_a_whole(how: str):
    model: nn.Module = seeded(toys.Inside(Energy(how)))
    assert "it computes gradients in its forward" in whole(capture(model, BATCH))
    with pytest.raises(DataDependentError, match="computes gradients"):
        capture(Energy(how), BATCH)
