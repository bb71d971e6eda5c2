"""Every model of the table: what is recorded computes what the model computes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.inputs import Example
from partitioner.errors import CaptureError, ForwardError, OptionError
from partitioner.graph import ModelGraph, info
from tests.capture.toys import Counts, Steps, Toy
from tests.captured import BATCH, captured, leaves, rerun, twins
from tests.models import MODELS


def call(graph: ModelGraph, model: nn.Module) -> Any:
    args, kwargs = graph.example
    return model(*args, **kwargs)


def tensors(graph: ModelGraph) -> list[Tensor]:
    args, kwargs = graph.example
    return Example(args=args, kwargs=dict(kwargs), inputs=graph.inputs).tensors()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_the_graph_computes_what_the_model_computes(name: str, training: bool):
    graph = captured(name)
    original, copy = twins(graph)
    original.train(training)
    copy.train(training)
    torch.manual_seed(0)
    expected = leaves(call(graph, original))
    torch.manual_seed(0)  # nodes run in program order: they draw the same numbers
    found = leaves(rerun(graph, copy, tensors(graph)))
    assert [path for path, _ in found] == [path for path, _ in expected]
    assert all(same(a, b) for (_, a), (_, b) in zip(found, expected, strict=True))
    buffers = dict(copy.named_buffers())
    for key, buffer in original.named_buffers():
        assert torch.equal(buffer, buffers[key]), key


@pytest.mark.parametrize("name", ["encoder", "gpt2", "bert", "t5", "whisper"])
def test_dropout_is_on_in_train_mode_and_off_in_eval_mode(name: str):
    graph = captured(name)
    outputs = {}
    for training in (True, False):
        _, copy = twins(graph)
        copy.train(training)
        for seed in (0, 1):
            torch.manual_seed(seed)
            outputs[training, seed] = leaves(rerun(graph, copy, tensors(graph)))[0][1]
    assert not torch.equal(outputs[True, 0], outputs[True, 1])
    assert torch.equal(outputs[False, 0], outputs[False, 1])


def state_of(model: nn.Module) -> list[Any]:
    """What must be left as it was, by identity and by content."""
    found: list[Any] = []
    for path, module in model.named_modules():
        for key, value in module.__dict__.items():
            found.append((path, key, id(value)))
            if isinstance(value, dict):
                found.append([(name, id(item)) for name, item in value.items()])
            if isinstance(value, list | set | tuple):
                found.append([id(item) for item in value])
        found.append(getattr(getattr(module, "config", None), "use_cache", None))
    found += [(name, b.sum().item()) for name, b in model.named_buffers()]
    found += [(name, p.requires_grad, p.grad) for name, p in model.named_parameters()]
    return found


def generators() -> list[bytes]:
    _, numbers, *_ = np.random.get_state()
    return [
        torch.get_rng_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        np.asarray(numbers).tobytes(),
    ]


@pytest.mark.parametrize("name", ["resnet", "lstm", "gpt2", "bert"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_model_and_the_generators_are_left_as_they_were(name: str, training: bool):
    model = MODELS[name].model().train(training)
    hook = next(model.children()).register_forward_hook(lambda *_: None)
    before, drawn = state_of(model), generators()
    capture(model, MODELS[name].example())
    assert state_of(model) == before
    assert generators() == drawn
    hook.remove()


def test_what_a_forward_keeps_and_appends_is_put_back():
    model = Steps()
    capture(model, BATCH)
    assert (model.last, model.log) == (None, [])
    counts = Counts()
    capture(counts, BATCH)
    assert counts.steps == 0


def test_the_model_is_put_back_after_a_failure():
    model = Counts()
    before = state_of(model)
    with pytest.raises(ForwardError):
        capture(model, torch.zeros(4, 5))
    assert state_of(model) == before
    assert nn.Module.__call__.__qualname__ == "Module._wrapped_call_impl"
    assert torch.autograd.Function.apply.__qualname__ == "Function.apply"


def ids(graph: ModelGraph) -> list[str]:
    return [info(node).id for node in graph.graph.nodes]


@pytest.mark.parametrize("name", [name for name in MODELS if "labels" not in name])
def test_ids_and_fingerprint_are_stable(name: str):
    """Another process's weights, mode and batch must not change what a plan names."""
    graph = captured(name)
    model = MODELS[name].model(seed=3).eval()
    torch.manual_seed(1234)
    again = capture(model, MODELS[name].example(seed=7))
    assert ids(again) == ids(graph)
    assert again.fingerprint == graph.fingerprint
    assert len(set(ids(graph))) == len(ids(graph))


@pytest.mark.parametrize("name", ["resnet", "lstm", "llama", "whisper"])
def test_a_model_on_meta_is_recorded_alike(name: str):
    with torch.device("meta"):
        model = MODELS[name].build(0.1).train()
    assert all(p.device.type == "meta" for p in model.parameters())
    graph = capture(model, MODELS[name].example())
    assert graph.fingerprint == captured(name).fingerprint
    assert all(p.device.type == "meta" for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_layer", 3), ("layer_norm_epsilon", 0.1), ("vocab_size", 101)],
    ids=["another depth", "another constant", "another shape"],
)
def test_the_fingerprint_tells_models_apart(name: str, value: float):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=64,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    example = MODELS["gpt2"].example()
    first = capture(GPT2LMHeadModel(config), example)
    setattr(config, name, value)
    second = capture(GPT2LMHeadModel(config), example)
    assert first.fingerprint != second.fingerprint


def test_the_forwards_own_error_is_chained():
    with pytest.raises(ForwardError, match=r"Linear.*x: float32\[4, 5\]") as caught:
        capture(Linear(), torch.zeros(4, 5))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "check the shapes" in caught.value.hint


class Linear(Toy):
    """Named Toy in messages no more than any other subclass."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_a_class_is_no_module():
    with pytest.raises(OptionError, match="model is a type") as caught:
        capture(Linear, BATCH)  # type: ignore[arg-type]
    assert "not its class" in caught.value.hint


def test_a_lazy_module_must_run_first():
    with pytest.raises(CaptureError, match="'weight' is not initialised"):
        capture(nn.LazyLinear(3), BATCH)


def test_describe_names_every_node():
    graph = captured("mlp")
    lines = graph.describe().splitlines()
    assert lines[0] == f"Sequential: {len(graph.graph.nodes)} nodes"
    assert len(lines) == 1 + len(graph.graph.nodes)
    assert any("compute" in line and "3@0" in line for line in lines)
