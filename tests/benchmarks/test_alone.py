"""A stage alone does what the engines do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.speed.alone import Stage, run_alone
from benchmarks.speed.stages import KINDS
from tests.distributed.launch import launch

CPU = torch.device("cpu")


class Watched:
    """Sums that note when they are called, and which gradients there are then."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.calls: list[tuple[str, Any]] = []

    def backward_prologue(self) -> None:
        self.weight.grad = None
        self.calls.append(("before", None))

    def backward_epilogue(self) -> None:
        self.calls.append(("after", self.weight.grad))


def stage(loss: Any, *, is_first: bool) -> tuple[Stage, nn.Linear, Watched]:
    layer = nn.Linear(3, 3)
    sums = Watched(layer.weight)
    return Stage(forward=layer, loss=loss, sums=sums, is_first=is_first), layer, sums


def test_every_micro_batch_adds_its_gradient_once_to_the_sums():
    made, layer, sums = stage(nn.functional.mse_loss, is_first=True)
    inputs, labels = torch.randn(4, 3), torch.randn(4, 3)
    nn.functional.mse_loss(layer(inputs), labels).backward()
    wanted: Any = layer.weight.grad
    alone = run_alone(made, inputs, labels, CPU, repeats=2)
    names, gradients = zip(*sums.calls, strict=True)
    assert names == ("before", "after") * (len(names) // 2)
    assert len(names) >= 2 * 2
    for gradient in gradients[1::2]:
        assert torch.equal(gradient, wanted)
    assert alone.made.item() == nn.functional.mse_loss(layer(inputs), labels).item()


def test_what_a_stage_sends_is_what_the_next_receives_without_a_graph():
    made, layer, sums = stage(None, is_first=False)
    received = torch.randn(4, 3)
    alone = run_alone(made, received, None, CPU, repeats=2)
    assert torch.equal(alone.made, layer(received))
    assert not alone.made.requires_grad
    assert received.grad is None  # what was received is nobody's leaf
    assert sums.calls[1][1].any()


@pytest.mark.parametrize("is_first", [True, False])
def test_only_what_another_stage_has_sent_gets_a_gradient(is_first):
    made, layer, _ = stage(None, is_first=is_first)
    seen = []
    layer.register_forward_pre_hook(
        lambda _, given: seen.append(given[0].requires_grad)
    )
    run_alone(made, torch.randn(4, 3), None, CPU, repeats=1)
    assert set(seen) == {not is_first}


@pytest.mark.parametrize(("kind", "compiled"), [("eager", False), ("compiled", True)])
def test_the_name_of_a_variant_says_how_layers_and_loss_run(kind, compiled):
    layer, loss = nn.Linear(3, 3), nn.functional.mse_loss
    used = KINDS[kind]([layer], loss)
    assert (layer._compiled_call_impl is not None) is compiled
    assert (used is not loss) is compiled


def next_to_an_engine(folder: str) -> dict[str, Any]:
    """Train a step as DeepSpeed does, and run the same stage alone."""
    from benchmarks.speed.hand_written import one_device
    from benchmarks.speed.ours import Planner
    from benchmarks.speed.registry import WORKLOADS
    from benchmarks.speed.setting import Setting
    from benchmarks.speed.stages import stages_of
    from benchmarks.speed.variants import variants

    dtype = torch.bfloat16
    workload = WORKLOADS["gpt2-medium"](tiny=True, dtype=dtype)
    setting = Setting(
        workload=workload, device=CPU, dtype=dtype, micro_batches=2, drawn=1
    )
    runner = one_device(setting)
    engine = runner.engine
    losses = []
    # What one micro-batch adds, before the step of the optimizer clears it.
    engine.optimizer.step = lambda *_: losses.append(
        engine.optimizer.fp32_groups_gradients_flat[0].clone()
    )
    loss = float(runner.step())
    planner = Planner(setting, Path(folder), stages=2)
    variant = next(iter(variants(setting, planner)))
    stages = stages_of(variant, planner)
    alone = stages.build(0)
    optimizer: Any = alone.sums
    received, labels = stages.micro_batch()
    for _ in range(2):
        for _ in alone.passes(received, labels, [None]):
            pass
    found = {
        "losses": (loss, float(alone.make(received, labels))),
        "dtypes": (engine.optimizer.grad_acc_dtype, optimizer.grad_acc_dtype),
        # The engine divides its loss by the number of micro-batches: by two, exactly.
        "sums": (2 * losses[0], optimizer.fp32_groups_gradients_flat[0]),
    }
    setting.close()
    return found


@pytest.mark.distributed
def test_a_hand_written_stage_is_deepspeeds_engines(tmp_path):
    (found,) = launch(1, next_to_an_engine, str(tmp_path))
    for engine, alone in found.values():
        if isinstance(engine, Tensor):
            assert engine.any()
            assert torch.equal(engine, alone)
        else:
            assert engine == alone


def added_both_ways() -> list[tuple[Tensor, Tensor | None]]:
    """Add the gradients of three micro-batches as either engine does."""
    from benchmarks.speed.sums import sums_of

    found = []
    for plans in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(8, 8).to(torch.bfloat16)
        sums: Any = sums_of(dict(layer.named_parameters()), torch.bfloat16, plans=plans)
        for _ in range(3):
            sums.backward_prologue()
            layer(torch.randn(4, 8, dtype=torch.bfloat16)).sum().backward()
            sums.backward_epilogue()
        found.append((sums.fp32_groups_gradients_flat[0], layer.weight.grad))
    return found


@pytest.mark.distributed
def test_plans_let_go_of_gradients_and_deepspeed_keeps_them():
    ((ds_sum, ds_gradient), (our_sum, our_gradient)) = launch(1, added_both_ways)[0]
    assert ds_sum.dtype == torch.bfloat16
    assert ds_sum.any()
    assert torch.equal(ds_sum, our_sum)
    assert ds_gradient is not None
    assert our_gradient is None


def predicted_stages_alone() -> dict[str, int]:
    """Run both stages of every whole-layer cut as ``accuracy_seconds`` does."""
    import transformers

    from benchmarks.accuracy_seconds import placement, run_stages, whole_layer_cuts
    from partitioner.capture import capture
    from partitioner.cost import price, problem, resolve

    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 50}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    inputs = torch.randint(50, (2, 8))
    graph = capture(model.bfloat16(), {"input_ids": inputs}, dtype=torch.bfloat16)
    _, units = problem(price(graph, profile=resolve(None)), stages=2, micro_batches=4)
    cuts = whole_layer_cuts(graph, units)
    seconds = [run_stages(graph, placement(units, cut, 2), [inputs]) for cut in cuts]
    return {
        "cuts": len(cuts),
        "timed": sum(each > 0 for both in seconds for each in both),
    }


@pytest.mark.distributed
def test_the_accuracy_of_prices_is_told_by_stages_alone():
    assert launch(1, predicted_stages_alone) == [{"cuts": 2, "timed": 4}]
