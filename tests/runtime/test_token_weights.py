"""Tokens are counted as the loss counts them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from partitioner import partition
from partitioner.errors import OptionError, RuntimeGuardError
from partitioner.runtime.labels import LabelsLayout
from partitioner.runtime.loss import LossHead
from partitioner.runtime.segment import SegmentBody
from partitioner.runtime.token_weights import TokenCounter, weights

IGNORED = -100


def head(graph: fx.Graph | None = None, loss_fn: Any = None, late: int = 1) -> LossHead:
    body = None if graph is None else SegmentBody(name="end", graph=graph)
    return LossHead(loss_fn, body, tuple, LabelsLayout(late=late if body else 0))


def graph_of(function: Any, **settings: Any) -> fx.Graph:
    """Return the graph of logits, labels → ``function(logits, labels.view(-1))``."""
    graph = fx.Graph()
    logits, labels = graph.placeholder("logits"), graph.placeholder("labels")
    target = graph.call_method("view", (labels, -1))
    graph.output((graph.call_function(function, (logits, target), settings),))
    return graph


def count(made: LossHead, batch: Any, labels: Any, **options: Any) -> int:
    """Count as the engine does, right after the batch adapter."""
    counter = TokenCounter(made, **options)
    flat = made.labels.flatten(labels if not made.labels.late else None)
    return counter(batch, (labels, *flat) if made.labels.late else flat)


LABELS = torch.tensor([[1, 2, IGNORED], [IGNORED, 0, 4]])


def test_a_causal_model_of_transformers_counts_its_shifted_labels():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=1, hidden_size=8, intermediate_size=8, vocab_size=9,
        num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=8,
    )  # fmt: skip
    ids = LABELS.clamp(0)
    plan = partition(
        LlamaForCausalLM(config),
        1,
        example_inputs={"input_ids": ids, "labels": ids},
        micro_batches=1,
        device="h100",
    )
    layers, adapter = plan.layers, plan.batch_fn
    counter = TokenCounter(LossHead(None, layers.head, layers.rebuild, adapter.labels))
    batch = {"input_ids": ids, "labels": LABELS}
    assert (
        counter(batch, adapter(batch)[1]) == int((LABELS[:, 1:] != IGNORED).sum()) == 3
    )


def test_the_recorded_cross_entropy_says_what_it_ignores():
    made = head(graph_of(F.cross_entropy, ignore_index=0))
    assert count(made, None, LABELS) == 5
    assert count(head(graph_of(F.nll_loss)), None, LABELS) == 4


@pytest.mark.parametrize(
    "labels", [LABELS, {"labels": LABELS, "weights": torch.ones(2)}]
)
def test_a_loss_function_s_labels_are_counted(labels):
    assert count(head(loss_fn=F.cross_entropy), None, labels) == 4


def test_the_user_s_own_function_counts_the_batch():
    made = head(graph_of(F.cross_entropy))
    assert (
        count(made, {"kept": LABELS}, LABELS, count=lambda b: (b["kept"] > 1).sum())
        == 2
    )


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (head, "found 0"),
        (lambda: head(graph_of(F.mse_loss)), "found 0"),
        (lambda: head(graph_of(F.cross_entropy, reduction="sum")), "reduction='sum'"),
        (lambda: head(graph_of(F.cross_entropy), late=0), "depend on labels"),
    ],
)
def test_a_loss_that_does_not_show_its_tokens_is_refused(made, message):
    with pytest.raises(OptionError, match=message) as caught:
        TokenCounter(made())
    assert "a function of a micro-batch" in str(caught.value)


@pytest.mark.parametrize("labels", [None, torch.ones(3), {"other": LABELS}])
def test_labels_that_cannot_be_counted_are_refused(labels):
    with pytest.raises(RuntimeGuardError, match="one integer tensor"):
        count(head(loss_fn=F.mse_loss), None, labels)


def test_weights_make_the_mean_of_means_the_mean_over_all():
    counts = [[4, 0, 1], [2, 2, 3]]
    losses = torch.rand(2, 3)
    weighed = [weights(each, 12, replicas=2) for each in counts]
    mean = (losses * torch.tensor(weighed)).mean()
    torch.testing.assert_close(mean, (losses * torch.tensor(counts)).sum() / 12)
    assert weights([0, 0], 0, 1) == [0.0, 0.0]


def token() -> Tensor:
    return torch.zeros((), requires_grad=True)


def test_the_head_weighs_each_loss_and_what_it_reports_once():
    def loss_fn(output: Any, labels: Any) -> Any:
        return {"loss": output[0].sum(), "further": output[0].sum() * 2}

    made = head(loss_fn=loss_fn)
    made.weights.extend([3.0, 0.0])
    value = torch.full((2,), torch.nan)
    ones = torch.ones(2, requires_grad=True)
    assert made((token(), ones), ()).item() == 6.0
    assert made.additional == {"further": 12.0}
    # A micro-batch without a token: its mean, and the mean's gradient, are not numbers.
    start = token()
    loss = made((start, value.requires_grad_()), ())
    loss.backward()
    assert loss.item() == 0.0
    assert made.additional == {"further": 0.0}
    assert start.grad is not None
    assert value.grad is None
    assert made((token(), ones), ()).item() == 2.0


def test_layouts_are_read_in_the_order_in_which_they_were_written():
    layout = LabelsLayout()
    layout.clear(keeps_all=True)
    first, second = (layout.flatten({"a": LABELS, "name": name}) for name in "xy")
    assert layout.split_latest(second)[1]["name"] == "y"
    assert [layout.split(each)[1]["name"] for each in (first, second)] == ["x", "y"]
    layout.clear(keeps_all=False)
    for name in "xy":
        layout.flatten({"a": LABELS, "name": name})
    assert layout.split(first)[1]["name"] == "y"
