"""Habits of real forwards: regions, hooks, draws, reads; recorded or refused."""

from __future__ import annotations

import gc
import random
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.ambient import ambient
from partitioner.capture.frames import forward_source
from partitioner.errors import CaptureError, DataDependentError
from partitioner.graph import ModelGraph, info
from tests.capture import toys
from tests.captured import BATCH, cut_everywhere, leaves, rerun, seeded


def check(model: nn.Module, example: Any = BATCH) -> ModelGraph:
    graph = capture(seeded(model), example)
    for verification in cut_everywhere(graph):
        assert verification.ok, verification
    return graph


def leaf_note(graph: ModelGraph, path: str) -> str:
    """The note that says why a module runs as a whole; it must be one leaf."""
    (note,) = [
        text for text in graph.assumptions if text.startswith(f"{path} runs as a whole")
    ]
    assert [n for n in graph.graph.nodes if n.op == "call_module" and n.target == path]
    assert not [span for span in graph.spans if span.path.startswith(path)]
    return note


@pytest.mark.parametrize(
    "toy",
    [
        toys.PythonDropout,
        toys.Teacher,
        toys.InferenceTeacher,
        toys.Autocast,
        toys.Reverses,
        toys.DrawsData,
        toys.TwiceTheSame,
        toys.Unregistered,
        toys.RootParameter,
        toys.SharedModule,
        toys.PassesState,
    ],
    ids=lambda toy: toy.__name__,
)
def test_what_a_forward_does_survives_any_cut(toy: type[nn.Module]):
    check(toy())


def node_named(graph: ModelGraph, name: str) -> Any:
    return next(node for node in graph.graph.nodes if node.name == name)


def test_regions_belong_to_the_nodes():
    graph = capture(seeded(toys.Teacher()), BATCH)
    assert not info(node_named(graph, "tanh")).region.grad_enabled
    assert info(node_named(graph, "second")).region.grad_enabled
    graph = capture(seeded(toys.Autocast()), BATCH)
    inside = info(node_named(graph, "matmul")).region
    assert inside.autocast == (("cpu", torch.bfloat16),)
    assert info(node_named(graph, "second")).region.autocast == ()


def test_a_value_that_follows_the_mode_selects_at_run_time():
    graph = capture(seeded(toys.PythonDropout()), BATCH)
    dropout = node_named(graph, "dropout")
    rate = dropout.kwargs["p"]
    assert rate.target.__name__ == "by_mode"
    assert rate.args[1:] == (0.5, 0.0)


def test_a_frozen_submodule_stays_frozen():
    model = toys.Frozen().train()
    model.inner.eval()
    graph = check(model)
    assert not model.inner.training
    outputs = set()
    for seed in range(2):
        torch.manual_seed(seed)
        outputs.add(tuple(model.inner(BATCH).flatten().tolist()))
    assert len(outputs) == 1
    assert not info(node_named(graph, "inner_1")).draws
    assert info(node_named(graph, "outer_1")).draws


def test_a_module_called_three_times_has_three_ids():
    graph = capture(seeded(toys.SharedModule()), BATCH)
    ids = [info(node).id for node in graph.graph.nodes if node.target == "first"]
    assert ids == ["first@0", "first@1", "first@2"]


def test_a_custom_autograd_function_is_one_node_with_its_name():
    graph = capture(seeded(toys.Reverses()), BATCH)
    (node,) = [
        n for n in graph.graph.nodes if "Reverse" in getattr(n.target, "__name__", "")
    ]
    assert node.args[1] == 0.5


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_models_own_checkpointing_is_recorded_through(reentrant: bool):
    graph = check(toys.Checkpoints(reentrant=reentrant))
    assert [span.path for span in graph.spans] == ["inner"]


READS = {
    "item": ".item()",
    "bool": "h.sum() > 0",
    "nonzero": "torch.nonzero",
    "numpy": ".numpy()",
    "format": ":.2f",
}

# -- what Python reads ----------------------------------------------------------------


@pytest.mark.parametrize("how", READS)
def test_a_submodule_that_reads_values_runs_as_a_whole(how: str):
    graph = check(toys.Inside(toys.ReadsValue(how)))
    note = leaf_note(graph, "inner")
    assert "tests/capture/toys.py:" in note
    assert any("run on random numbers" in text for text in graph.assumptions)


@pytest.mark.parametrize("how", READS)
def test_a_root_that_reads_values_is_an_error_with_its_line(how: str):
    with pytest.raises(DataDependentError) as caught:
        capture(toys.ReadsValue(how), BATCH)
    error = caught.value
    assert error.module_path == ""
    path, _, line = error.source.rpartition(":")
    assert path == "tests/capture/toys.py"
    source = Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert READS[how] in source
    assert error.source in str(error)
    assert "submodule of its own" in error.hint


def test_a_leaf_that_returns_a_number_takes_its_parent_along():
    class Number(nn.Module):
        def forward(self, x: Tensor) -> float:
            return float(x.mean())

    class Scales(toys.Toy):
        def __init__(self) -> None:
            super().__init__()
            self.number = Number()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) * self.number(x))

    graph = check(toys.Inside(Scales()))
    leaf_note(graph, "inner")
    notes = [note for note in graph.assumptions if "runs as a whole" in note]
    assert len(notes) == 1  # of what is inside a leaf there is nothing to say


def test_a_failing_submodule_is_the_users_own_error():
    class Fails(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) @ x[:3]

    with pytest.raises(CaptureError, match="RuntimeError") as caught:
        capture(toys.Inside(Fails()), BATCH)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_numpy_numbers_are_written_as_python_numbers():
    class Scaled(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x) / np.sqrt(6.0)
            return self.second(h[:, : np.int64(6)]) * np.float32(0.5)

    check(Scaled())


def test_an_unregistered_trainable_tensor_is_refused():
    class Forgot(toys.Toy):
        def __init__(self) -> None:
            super().__init__()
            self.scales = [torch.ones(6, requires_grad=True)]

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) * self.scales[0])

    with pytest.raises(DataDependentError, match="not registered") as caught:
        capture(Forgot(), BATCH)
    assert "nn.Parameter" in caught.value.hint


UNRECORDABLE = {
    "vmap": (lambda: toys.Vmaps(module=False), "vmap|dispatch modes"),
    "vmap of a module": (lambda: toys.Vmaps(module=True), "vmap|dispatch modes"),
    "sparse": (toys.Sparse, "sparse coo"),
    "sparse rows": (toys.SparseRows, "sparse csr"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("name", UNRECORDABLE)
def test_what_no_stage_could_hold_stays_inside_a_leaf(name: str):
    build, reason = UNRECORDABLE[name]
    graph = check(toys.Inside(build()))
    assert re.search(reason, leaf_note(graph, "inner"))
    with pytest.raises(DataDependentError, match=reason) as caught:
        capture(build(), BATCH)
    assert "toys.py" in caught.value.source
    assert "submodule" in caught.value.hint


def test_an_operator_of_functions_is_refused_with_its_line():
    with pytest.raises(DataDependentError, match=r"torch\.cond") as caught:
        capture(toys.Inside(toys.Cond()), BATCH)
    assert "toys.py" in caught.value.source
    assert "torch.where" in caught.value.hint


def test_a_sparse_buffer_is_refused_with_its_name():
    model = toys.Inside(nn.Tanh())
    model.inner.register_buffer("graph", torch.eye(4).to_sparse())
    with pytest.raises(CaptureError, match=r"'inner\.graph'.*sparse_coo") as caught:
        capture(model, BATCH)
    assert "indices" in caught.value.hint


def test_lengths_are_the_examples_where_a_leaf_needs_their_values():
    class Reader(nn.Module):
        def __init__(self, total: int | None) -> None:
            super().__init__()
            self.rnn = nn.GRU(6, 6, batch_first=True)
            self.total = total

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            out, _ = self.rnn(packed)
            return nn.utils.rnn.pad_packed_sequence(
                out, batch_first=True, total_length=self.total
            )[0]

    class Reads(toys.Toy):
        def __init__(self, total: int | None) -> None:
            super().__init__()
            self.reader = Reader(total)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return self.second(self.reader(self.first(x), lengths))

    example = (BATCH.reshape(2, 2, 6), torch.tensor([2, 1]))
    graph = check(Reads(2), example)
    leaf_note(graph, "reader")
    with pytest.raises(CaptureError):  # the longest of the batch: another each time
        capture(Reads(None), example)


def test_a_copied_tensor_makes_a_leaf_with_a_hint():
    graph = check(toys.Inside(toys.CopiesObject()))
    assert "copy.copy" in leaf_note(graph, "inner")
    with pytest.raises(DataDependentError, match=r"copy\.copy") as caught:
        capture(toys.CopiesObject(), BATCH)
    assert "clone()" in caught.value.hint


def test_a_count_of_data_makes_a_leaf():
    class Bins(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.second(h + torch.bincount(h.argmax(1), minlength=6))

    graph = check(toys.Inside(Bins()))
    assert "bincount" in leaf_note(graph, "inner")


# -- random numbers --------------------------------------------------------------------


def test_a_branch_that_never_happens_is_noted():
    graph = check(toys.LayerDrop(0.0))
    assert any("compares a random number" in note for note in graph.assumptions)


@pytest.mark.parametrize("rate", [0.5, 0.01, 0.99])
def test_a_branch_on_a_random_number_becomes_a_leaf(rate: float):
    """However rare: the first recordings may well go the same way."""
    graph = check(toys.Inside(toys.LayerDrop(rate)))
    assert "random number" in leaf_note(graph, "inner")
    with pytest.raises(DataDependentError, match="random number"):
        capture(toys.LayerDrop(rate), BATCH)


def test_a_random_number_in_an_argument_is_not_baked_in():
    graph = check(toys.Inside(toys.RandomScale()))
    leaf_note(graph, "inner")
    with pytest.raises(DataDependentError, match="random number"):
        capture(toys.RandomScale(), BATCH)


@pytest.mark.parametrize("source", ["random", "numpy"])
def test_draws_from_other_generators_make_a_leaf(source: str):
    graph = check(toys.Inside(toys.Inside(toys.HostDraw(source))))
    assert "generator" in leaf_note(graph, "inner.inner")
    assert [span.path for span in graph.spans] == ["inner"]  # no more than needed
    with pytest.raises(DataDependentError, match="numpy's or Python's") as caught:
        capture(toys.HostDraw(source), BATCH)
    assert "toys.py" in caught.value.source


def test_recording_does_not_depend_on_the_generators():
    prints = set()
    for number in range(2):
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        model = seeded(toys.Inside(toys.LayerDrop(0.5)))
        prints.add(capture(model, BATCH).fingerprint)
    assert len(prints) == 1


def test_a_modules_own_generator_is_left_as_it_was():
    model = toys.Inside(toys.OwnGenerator())
    inner: Any = model.inner
    generators = (inner.generator, inner.others["shift"])
    before = [generator.get_state() for generator in generators]
    graph = check(model)
    assert "Generator" in leaf_note(graph, "inner")
    for generator, state in zip(generators, before, strict=True):
        assert torch.equal(generator.get_state(), state)


# -- hooks -----------------------------------------------------------------------------


def test_a_tensor_hook_keeps_its_module_whole():
    graph = check(toys.Inside(toys.TensorHook()))
    assert "hook" in leaf_note(graph, "inner")
    with pytest.raises(DataDependentError, match="register_hook"):
        capture(toys.TensorHook(), BATCH)


def test_a_backward_hook_keeps_its_module_whole():
    graph = check(toys.BackwardHook())
    assert "backward hook" in leaf_note(graph, "inner")


@pytest.mark.parametrize("how", ["script", "trace"])
def test_a_part_compiled_by_torchscript_runs_whole(how: str):
    inner = seeded(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    compiled: Any = (
        torch.jit.script(inner) if how == "script" else torch.jit.trace(inner, BATCH)
    )
    model = seeded(toys.Inside(compiled))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    graph = check(model)
    assert "TorchScript" in leaf_note(graph, "inner")
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
    with pytest.raises(DataDependentError, match="TorchScript"):
        capture(compiled, BATCH)


def test_a_scripted_part_runs_in_the_dtype_that_is_asked_for():
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.register_buffer("shift", torch.full((6,), 0.5, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(x)).add(self.shift)  # type: ignore[arg-type]

    model = seeded(toys.Inside(torch.jit.script(Scales())))
    graph = capture(model, BATCH, dtype=torch.bfloat16)
    (node,) = [node for node in graph.graph.nodes if node.target == "inner"]
    assert [meta.dtype for meta in info(node).outputs] == [torch.bfloat16]
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


def test_a_backward_hook_on_the_root_is_refused():
    model = toys.Inside(nn.Tanh())
    model.register_full_backward_hook(lambda module, before, after: None)
    before = ambient()
    with pytest.raises(DataDependentError, match="backward hook") as caught:
        capture(model, BATCH)
    assert "submodule" in caught.value.hint
    assert ambient() == before  # nothing that watches operators is left on


@pytest.mark.parametrize("where", ["", "inner", "before"])
def test_forward_hooks_are_recorded(where: str):
    model = toys.Inside(toys.Inside(nn.Tanh()))
    module = model.get_submodule(where)
    module.register_forward_hook(lambda module, args, out: out * 3)
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    check(model)


def test_assigning_to_a_tensors_attribute_is_not_lost():
    class Assigns(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            h.data = h.data * 2
            return self.second(h)

    graph = check(toys.Inside(Assigns()))
    assert ".data is assigned" in leaf_note(graph, "inner")


# -- modes -----------------------------------------------------------------------------


def test_what_one_mode_computes_in_vain_is_no_difference():
    graph = capture(seeded(toys.OffersFastPath()), BATCH)
    assert "runs as a whole" not in "\n".join(graph.assumptions)
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


@pytest.mark.parametrize("toy", [toys.Branches, toys.PicksOperand])
def test_a_module_that_differs_by_mode_runs_as_a_whole(toy: type[nn.Module]):
    graph = check(toys.Inside(toy()))
    assert "train and eval mode differ" in leaf_note(graph, "inner")


@pytest.mark.parametrize("toy", [toys.Branches, toys.PicksOperand, toys.ReturnsByMode])
def test_a_root_that_differs_by_mode_is_an_error(toy: type[nn.Module]):
    with pytest.raises(CaptureError, match="train and eval mode differ"):
        capture(toy(), BATCH)


def test_a_root_that_returns_something_else_by_mode_is_named_by_its_forward():
    with pytest.raises(CaptureError, match="output differs") as caught:
        capture(toys.ReturnsEither(), BATCH)
    assert isinstance(caught.value, DataDependentError)
    assert caught.value.source == forward_source(toys.ReturnsEither())
    assert caught.value.source in str(caught.value)


def test_torchs_log_of_failing_fakes_stays_quiet(caplog: pytest.LogCaptureFixture):
    class Fails(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            torch.ops.aten._grouped_mm(x, x, None)
            return self.second(x)

    with caplog.at_level("WARNING"), pytest.raises(CaptureError):
        capture(Fails(), BATCH)
    assert not caplog.records


def test_a_module_that_returns_less_in_eval_mode_is_never_called_whole():
    class Uses(toys.Toy):
        def __init__(self) -> None:
            super().__init__()
            self.inner = toys.ReturnsByMode()

        def forward(self, x: Tensor) -> Tensor:
            out = self.inner(self.first(x))
            return self.second(out[0] if self.training else out)

    graph = check(Uses())
    (span,) = [span for span in graph.spans if span.path == "inner"]
    assert "eval mode" in span.opened_because


def test_state_kept_in_attributes_is_reported():
    graph = check(toys.Inside(toys.Steps()))
    assert any("inner changes last" in note for note in graph.assumptions)


# -- outputs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        "tensor", "tuple", "list", "dict", "nested", "dataclass", "constants",
        "parameter", "input", "max",
    ],
)  # fmt: skip
def test_outputs_keep_their_form(form: str):
    graph = check(toys.Output(form))
    torch.manual_seed(0)
    expected = graph.model(BATCH)
    found = rerun(graph, graph.model, [BATCH])
    assert type(found) is type(expected)
    pairs = zip(leaves(found), leaves(expected), strict=True)
    for (path, value), (wanted_path, wanted) in pairs:
        assert path == wanted_path
        assert (
            torch.equal(value, wanted)
            if isinstance(wanted, Tensor)
            else value == wanted
        )


def test_library_objects_in_an_output_are_dropped_with_a_note():
    class Cache:
        pass

    class Caches(toys.Toy):
        def forward(self, x: Tensor) -> tuple[Tensor, Cache]:
            return self.second(self.first(x)), Cache()

    graph = check(Caches())
    assert any("holds a Cache" in note for note in graph.assumptions)


def test_a_model_is_let_go_once_nobody_needs_its_graph():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    capture(model, torch.ones(2, 4))
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
