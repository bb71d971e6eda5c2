from __future__ import annotations

import pytest

from partitioner.assess.layers import whole_layers
from tests.assess.cases import Tower, tower
from tests.plan.test_plan import plan_of


def layers_of(plan):
    return whole_layers(plan.costed, plan.problem, plan.units)


def test_layers_are_blocks_and_the_modules_around_them():
    plan = tower()
    layers = layers_of(plan)

    blocks = [layer for layer in layers if layer.repeated]
    model = plan.graph.model
    assert isinstance(model, Tower)
    sizes = [sum(p.numel() for p in block.parameters()) for block in model.blocks]
    assert [layer.parameters for layer in blocks] == sizes
    # The embedding, and the product with the scale, which is no module, before them.
    before = [model.embed.weight.numel(), model.scale.numel()]
    assert [layer.parameters for layer in layers[:2]] == before
    assert layers[2:8] == tuple(blocks)
    assert layers[-1].parameters == sum(p.numel() for p in model.head.parameters())


@pytest.mark.parametrize("model", ["gpt2", "t5", "resnet", "bert", "whisper"])
def test_any_cut_between_layers_is_legal_and_nothing_is_left_out(model):
    plan = plan_of(model, 2)
    layers = layers_of(plan)

    place = {unit: n for n, layer in enumerate(layers) for unit in layer.units}
    assert sorted(place) == list(range(len(plan.problem.units)))
    for value in plan.problem.values:
        for reader in value.consumers:
            assert place[value.producer] <= place[reader]
    for before, after in plan.problem.order_edges:
        assert place[before] <= place[after]
    total = plan.costed.total
    assert sum(layer.flops for layer in layers) == (
        total.forward_flops + total.backward_flops
    )


def test_encoder_and_decoder_blocks_are_layers_of_their_own():
    plan = plan_of("t5", 2)

    blocks = [
        plan.graph.model.get_submodule(path)
        for path in (
            f"{part}.block.{i}" for part in ("encoder", "decoder") for i in range(3)
        )
    ]
    assert [layer.repeated for layer in layers_of(plan)].count(True) == len(blocks)


def test_the_parts_of_an_embedding_are_one_layer():
    plan = plan_of("bert", 2)

    embeddings = plan.graph.model.get_submodule("bert.embeddings")
    expected = sum(p.numel() for p in embeddings.parameters())
    assert layers_of(plan)[0].parameters == expected
