"""Recordings of two modes and of two sizes, merged argument by argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from partitioner.capture.merge import ByMode, check_sizes, merge_modes, merge_sizes
from partitioner.capture.prune import prune
from partitioner.capture.records import Call, Recording, Ref, SpanRecord
from partitioner.capture.sizes import FreeSize, SizeExpr
from partitioner.capture.structure import MismatchError
from partitioner.capture.tree import template
from partitioner.graph import Region, TensorMeta

LENGTH = FreeSize(dims=((0, 0),), value=8, other=4, larger=16)
OTHER = FreeSize(dims=((0, 1),), value=6, other=3, larger=12)


def meta(*shape: int, storage: int = 0) -> TensorMeta:
    return TensorMeta(
        shape=shape, dtype=torch.float32, requires_grad=False, storage=storage
    )


def call(number: int, target: str, *args: Any, shape=(8,), **fields: Any) -> Call:
    return Call(
        id=f"@0:{number}",
        kind="method",
        target=target,
        args=args,
        outputs=[((), meta(*shape, storage=number))],
        source=f"model.py:{number}",
        **fields,
    )


def structure(tree: Any) -> Any:
    """An output's template; "r2" stands for the result of call 2."""

    def leaf(value: Any) -> Any:
        is_ref = isinstance(value, str) and value.startswith("r")
        return Ref(int(value[1:])) if is_ref else value

    return template(tree, leaf)


def recording(*calls: Call, output: Any = None, spans: Any = ()) -> Recording:
    given = Call(id="input:x", kind="input", target="x", outputs=[((), meta(8))])
    last = f"r{len(calls)}" if output is None else output
    return Recording(calls=[given, *calls], spans=list(spans), output=structure(last))


def span(path: str, start: int, end: int, output: Any = None, **fields: Any):
    return SpanRecord(
        path=path, call=0, start=start, end=end, args=(), kwargs={},
        output=structure(output), region=Region(), **({"parent": None} | fields),
    )  # fmt: skip


# -- modes -----------------------------------------------------------------------------


def test_an_argument_that_differs_by_mode_selects():
    train = recording(call(0, "dropout", Ref(0), 0.1, True))
    evaluation = recording(call(0, "dropout", Ref(0), 0.0, False))
    merged = merge_modes(train, evaluation)
    assert merged.calls[1].args == (Ref(0), ByMode(0.1, 0.0), ByMode(True, False))


def test_true_and_one_are_different_arguments():
    merged = merge_modes(
        recording(call(0, "f", Ref(0), 1)), recording(call(0, "f", Ref(0), True))
    )
    assert merged.calls[1].args[1] == ByMode(1, True)


def test_nested_arguments_merge_leaf_by_leaf():
    train = recording(call(0, "f", [Ref(0), (1, slice(None, 3))], {"a": 1}))
    evaluation = recording(call(0, "f", [Ref(0), (1, slice(None, 4))], {"a": 1}))
    merged = merge_modes(train, evaluation)
    assert merged.calls[1].args == ([Ref(0), (1, slice(None, ByMode(3, 4)))], {"a": 1})


def test_nan_equals_nan():
    nan = float("nan")
    train, evaluation = [recording(call(0, "full", Ref(0), nan)) for _ in range(2)]
    merged = merge_modes(train, evaluation)
    assert not isinstance(merged.calls[1].args[1], ByMode)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (recording(call(0, "mul", Ref(0))), "became mul"),
        (recording(call(0, "add", Ref(0)), call(1, "add", Ref(1))), "only one of them"),
        (recording(call(0, "add", Ref(0), Ref(0))), "another length"),
        (recording(call(0, "add", Ref(0)), output=("r1",)), "output differs"),
        (recording(call(0, "add", None)), "operand differs"),
        (
            recording(call(0, "add", Ref(0), region=Region(grad_enabled=False))),
            "other modes",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_arguments_cannot_express_is_a_mismatch(other: Recording, reason: str):
    with pytest.raises(MismatchError, match=reason) as caught:
        merge_modes(recording(call(0, "add", Ref(0))), other)
    assert caught.value.position in {1, 2}


def test_a_mismatch_knows_the_line():
    with pytest.raises(MismatchError) as caught:
        merge_modes(recording(call(0, "a", Ref(0))), recording(call(0, "b", Ref(0))))
    assert caught.value.source == "model.py:0"


def test_memory_of_both_modes_is_kept():
    train = recording(call(0, "f", Ref(0)))
    evaluation = recording(call(0, "f", Ref(0), writes=(5,), draws=True))
    merged = merge_modes(train, evaluation)
    assert (merged.calls[1].writes, merged.calls[1].eval_writes) == ((), (5,))
    assert merged.calls[1].draws


def test_a_span_with_other_results_in_eval_mode_is_opened():
    operation = call(0, "add", Ref(0))
    train = recording(operation, spans=[span("a", 1, 2, ("r1", "r0"))])
    evaluation = recording(call(0, "add", Ref(0)), spans=[span("a", 1, 2, "r1")])
    merged = merge_modes(train, evaluation)
    assert "eval mode" in merged.spans[0].opened_because
    assert merged.spans[0].output is train.spans[0].output


# -- sizes -----------------------------------------------------------------------------


def test_an_integer_that_differs_becomes_an_expression():
    base = recording(call(0, "view", Ref(0), 8, 2, shape=(8, 2)))
    other = recording(call(0, "view", Ref(0), 4, 2, shape=(4, 2)))
    merged = merge_sizes(base, [other], [LENGTH])
    assert merged.calls[1].args == (Ref(0), SizeExpr(terms=((1, (0,)),)), 2)
    assert merged.calls[1].outputs[0][1].varying == (0,)


@pytest.mark.parametrize("value", [0.25, True, "abc"])
def test_only_integers_may_differ(value: Any):
    base = recording(call(0, "f", Ref(0), value))
    changed = {0.25: 0.5, True: False, "abc": "d"}[value]
    with pytest.raises(MismatchError, match="no integer"):
        merge_sizes(base, [recording(call(0, "f", Ref(0), changed))], [LENGTH])


def test_the_merge_of_modes_keeps_expressions():
    base = recording(call(0, "view", Ref(0), 8))
    other = recording(call(0, "view", Ref(0), 4))
    merged = merge_sizes(base, [other], [LENGTH])
    both = merge_modes(merged, recording(call(0, "view", Ref(0), 8)), [8])
    assert both.calls[1].args[1] == SizeExpr(terms=((1, (0,)),))


def test_all_sizes_together_are_checked():
    base = recording(call(0, "view", Ref(0), 48))
    others = [recording(call(0, "view", Ref(0), n)) for n in (24, 24)]
    merged = merge_sizes(base, others, [LENGTH, OTHER])
    check_sizes(merged.copy(), recording(call(0, "view", Ref(0), 12)), [4, 3])
    with pytest.raises(MismatchError, match="no known way") as caught:
        check_sizes(merged, recording(call(0, "view", Ref(0), 24)), [4, 3])
    assert caught.value.size == 1


# -- pruning ---------------------------------------------------------------------------


def test_what_nobody_reads_is_dropped_and_ids_count_on():
    found = prune(
        recording(
            call(0, "dead", Ref(0)), call(1, "live", Ref(0)), call(2, "last", Ref(2))
        )
    )
    assert [(c.id, c.target) for c in found.calls[1:]] == [
        ("@0:0", "live"),
        ("@0:1", "last"),
    ]
    assert found.calls[2].args == (Ref(1),)


def test_writes_and_their_arguments_stay():
    found = prune(
        recording(
            call(0, "view", Ref(0)),
            call(1, "add_", Ref(1), writes=(0,)),
            call(2, "mul", Ref(0)),
        )
    )
    assert [c.target for c in found.calls[1:]] == ["view", "add_", "mul"]


def test_bounds_of_module_calls_follow():
    found = prune(
        recording(
            call(0, "dead", Ref(0)),
            call(1, "a", Ref(0)),
            call(2, "b", Ref(2)),
            spans=[span("m", 1, 3, "r2")],
        )
    )
    (kept,) = found.spans
    assert [c.target for c in found.calls[kept.start : kept.end]] == ["a"]


def test_a_weight_stands_before_its_first_reader_that_is_left():
    weight = Call(id="w", kind="weight", target="w", outputs=[((), meta(8))])
    found = prune(
        recording(
            weight,
            call(0, "dead", Ref(1)),
            call(1, "a", Ref(0)),
            call(2, "b", Ref(3), Ref(1)),
            spans=[span("m", 2, 4, "r3"), span("n", 4, 5, "r4")],
        )
    )
    assert [c.target for c in found.calls[1:]] == ["a", "w", "b"]
    assert found.calls[3].args == (Ref(1), Ref(2))
    first, second = found.spans
    assert [c.target for c in found.calls[first.start : first.end]] == ["a"]
    assert [c.target for c in found.calls[second.start : second.end]] == ["w", "b"]
