"""What library code that looks at tensors must see: what it sees in eager mode."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F

from partitioner.capture import capture
from partitioner.capture.fakes import cache_configs, caches_off
from tests.zoo.causal import padded
from tests.zoo.entry import built, example
from tests.zoo.registry import ENTRIES


def eager_masks(model: nn.Module, inputs: Any) -> list[Any]:
    """The masks that Llama's layers are called with outside the compiler."""
    masks: list[Any] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        masks.append(kwargs["attention_mask"])

    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.register_forward_pre_hook(note, with_kwargs=True)
    with caches_off(cache_configs(model)):
        model(**inputs)
    return masks


def recorded(inputs: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Return the masks of the layers' calls, and (mask, is_causal) of attention."""
    graph = capture(built(ENTRIES["llama"]), inputs)
    layers = [
        span.kwargs["attention_mask"]
        for span in graph.spans
        if span.path in ("model.layers.0", "model.layers.1")
    ]
    attention = [
        (node.kwargs["attn_mask"], node.kwargs["is_causal"])
        for node in graph.graph.nodes
        if node.target is F.scaled_dot_product_attention
    ]
    return layers, attention


def test_llamas_layers_get_no_mask_when_none_is_given():
    inputs = example(ENTRIES["llama"])
    assert eager_masks(built(ENTRIES["llama"]), inputs) == [None, None]
    layers, attention = recorded(inputs)
    assert layers == [None, None]
    assert attention == [(None, True), (None, True)]


def test_llamas_layers_get_the_mask_of_a_padded_batch():
    layers, attention = recorded(padded(2, 16))
    assert None not in layers
    assert [(mask is None, causal) for mask, causal in attention] == [
        (False, False)
    ] * 2
