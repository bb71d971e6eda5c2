"""What the cache hands out is what torch's fakes would have made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from partitioner.capture.dispatch import FakeDispatch
from partitioner.capture.fake_cache import FakeCache

FAKES = FakeTensorMode(allow_non_fake_inputs=True)


def fake(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return FAKES.from_tensor(torch.empty(shape, dtype=dtype))


def facts(tensor: Tensor) -> Any:
    return (
        tensor.size(),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tensor.untyped_storage().nbytes(),
        torch._C._dispatch_keys(tensor).raw_repr(),
    )


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def as_list(out: Any) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else list(out)


class Counting(FakeTensorMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.ran: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.prim.device.default:
            self.ran.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs or {})


FUNCTIONS: list[Callable[[Tensor], Any]] = [
    lambda x: x * 2,
    lambda x: x + x.t().contiguous().t(),
    lambda x: x.t(),
    lambda x: x[1:, ::2],
    lambda x: x.split(2),
    lambda x: x.unbind(1),
    lambda x: x.sum(),
    lambda x: x.to(torch.bfloat16),
    lambda x: x.max(dim=0),
    lambda x: torch.cat([x, x]),
    lambda x: torch.nn.functional.layer_norm(x, (4,)),
    lambda x: x.new_zeros(3),
    lambda x: x.as_strided((2, 2), (1, 1), 3),
    lambda x: torch.view_as_complex(x.view(6, 2, 2)).conj(),
    lambda x: x.expand(5, 6, 4),
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_a_second_result_looks_as_the_first_and_shares_memory_as_it_does(number: int):
    function = FUNCTIONS[number]
    expected = as_list(function(fake(6, 4)))
    with FakeDispatch(FAKES):
        function(fake(6, 4))
        x = fake(6, 4)
        found = as_list(function(x))
    assert [facts(t) for t in found] == [facts(t) for t in expected]
    again = function(x)  # by torch
    shared = [memory(t) == memory(x) for t in as_list(again)]
    assert [memory(t) == memory(x) for t in found] == shared
    assert len({id(t) for t in found}) == len(found)


def test_an_operator_runs_once_for_tensors_that_look_alike():
    mode = Counting()
    with FakeDispatch(mode):
        x, y = (mode.from_tensor(torch.empty(6, 4)) for _ in range(2))
        mode.ran.clear()
        for tensor in (x, y, x):
            (tensor * 2).t()
        assert sorted(mode.ran) == ["aten.mul.Tensor", "aten.t.default"]
        x * 2.0  # another class of number
        x * 3
        x.t() * 2  # other strides
        mode.ran.remove("aten.t.default")
    assert mode.ran == ["aten.mul.Tensor"] * 4


def test_tensors_whose_looks_have_changed_are_looked_at_anew():
    with FakeDispatch(FAKES):
        x = fake(6, 4)
        assert (x * 2).shape == (6, 4)
        x.t_()
        assert (x * 2).shape == (4, 6)
        x.resize_(3, 5)
        assert (x * 2).shape == (3, 5)
        x.data = fake(7, 2)
        assert (x * 2).shape == (7, 2)


def test_default_dtype_and_inference_mode_count():
    with FakeDispatch(FAKES):
        number = fake(3, dtype=torch.int64)
        assert (number / 2).dtype is torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (number / 2).dtype is torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.inference_mode():
            assert (number / 2).is_inference()
        assert not (number / 2).is_inference()


def test_what_writes_is_run_each_time():
    with FakeDispatch(FAKES):
        for _ in range(2):
            x = fake(3)
            before = x._version
            assert x.add_(1) is x
            assert x._version == before + 1
            out = torch.add(x, x, out=fake(3))
            assert memory(out) != memory(x)


def test_plain_tensors_among_the_arguments_are_left_to_torch():
    cache = FakeCache(FAKES)
    x, constant = fake(3), torch.ones(3)
    add = torch.ops.aten.add.Tensor
    for _ in range(2):
        out = cache.run(add, (type(x),), (x, constant), {})
        assert facts(out) == facts(x + constant)
    assert cache._known == {}
