from __future__ import annotations

import operator

import torch

from partitioner.cost import price, resolve, units
from tests.cost.handmade import GraphBuilder, meta


def contract(builder, **facts):
    return units(price(builder.build(**facts), profile=resolve("cpu")))


def chain(builder, length, start=None):
    nodes = [start or builder.input("x", meta(2, 4))]
    for _ in range(length):
        nodes.append(builder.call(torch.tanh, nodes[-1], out=meta(2, 4)))
    return nodes


def test_a_chain_has_a_unit_for_each_node_in_program_order():
    builder = GraphBuilder()
    nodes = chain(builder, 3)
    nodes.append(builder.output(nodes[-1]))

    found = contract(builder)

    assert [found.unit_of[node] for node in nodes] == [0, 1, 2, 3, 4]
    assert found.nodes == tuple((node,) for node in nodes)


def test_weights_sizes_and_constants_are_not_placed():
    model = torch.nn.ModuleDict({"fc": torch.nn.Linear(4, 4)})
    builder = GraphBuilder(model)
    x = builder.input("x", meta(2, 4))
    weight = builder.weight("fc.weight")
    size = builder.call("size", x, 0, kind="size")
    constant = builder.call(
        torch.arange, size, out=meta(2, dtype=torch.int64), kind="constant"
    )
    y = builder.call(torch.matmul, x, weight, out=meta(2, 4))

    found = contract(builder)

    assert set(found.unit_of) == {x, y}
    assert not {weight, size, constant} & set(found.unit_of)


def test_a_group_is_one_unit_and_keeps_program_order_inside():
    builder = GraphBuilder()
    nodes = chain(builder, 3)

    found = contract(builder, groups=(frozenset(nodes[2:]),))

    assert found.nodes == ((nodes[0],), (nodes[1],), (nodes[2], nodes[3]))


def test_what_lies_between_the_members_of_a_group_joins_it():
    builder = GraphBuilder()
    nodes = chain(builder, 4)

    found = contract(builder, groups=(frozenset({nodes[1], nodes[3]}),))

    assert found.nodes[1] == (nodes[1], nodes[2], nodes[3])
    assert found.unit_of[nodes[4]] == 2


def test_an_order_edge_closes_a_cycle_like_a_data_edge():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4))
    left = chain(builder, 2, x)
    right = chain(builder, 2, x)

    apart = contract(builder, groups=(frozenset({left[1], right[2]}),))
    joined = contract(
        builder,
        groups=(frozenset({left[1], right[2]}),),
        order_edges=((left[2], right[1]),),
    )

    assert len(apart.nodes) == 4
    assert len(joined.nodes) == 2


def test_the_parts_of_one_result_stay_with_it():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4))
    parts = builder.call(torch.chunk, x, 2, 1, out=(meta(2, 2), meta(2, 2)))
    left = builder.call(operator.getitem, parts, 0, out=meta(2, 2))
    right = builder.call(operator.getitem, parts, 1, out=meta(2, 2))
    total = builder.call(torch.add, left, right, out=meta(2, 2))

    found = contract(builder)

    assert found.nodes == ((x,), (parts, left, right), (total,))


def test_indexing_a_tensor_may_be_cut_off():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4))
    y = builder.call(torch.tanh, x, out=meta(2, 4))
    row = builder.call(operator.getitem, y, 0, out=meta(4))

    found = contract(builder)

    assert found.unit_of[row] != found.unit_of[y]


def test_units_are_numbered_in_a_topological_order():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4))
    early = builder.call(torch.tanh, x, out=meta(2, 4))
    middle = builder.call(torch.sin, x, out=meta(2, 4))
    late = builder.call(torch.cos, middle, out=meta(2, 4))

    # The group starts first in program order, but needs what stands in the middle.
    found = contract(builder, groups=(frozenset({early, late}),))

    assert found.unit_of[middle] < found.unit_of[early] == found.unit_of[late]
