"""Tests of partitioner.report.html.boxes, on hand-made outlines."""

from __future__ import annotations

from typing import Any

from partitioner.report.html.boxes import Boxes

CROSSING = {0: {"before": 0, "after": 1, "tensors": 1, "bytes": "4 B", "far": False}}


def item(name: str, *children: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """One box of an outline, with ``changes`` put over the defaults."""
    stages = sorted({stage for child in children for stage in child["stages"]})
    defaults: dict[str, Any] = {
        "name": name,
        "kind": "Linear",
        "box": "module",
        "stages": stages or [0],
        "forward_s": 0.001,
        "backward_s": 0.002,
        "forward_flops": 0,
        "backward_flops": 0,
        "parameters": 0,
        "saved_bytes": 0,
        "source": "",
        "recomputed": 0.0,
        "ties": [],
        "children": list(children),
        "flows": [],
    }
    assert changes.keys() <= defaults.keys()
    return {**defaults, **changes}


def shown(boxes: Boxes) -> list[dict[str, Any]]:
    rows = [row["boxes"] for row in boxes.root["rows"] if "boxes" in row]
    return [box for row in rows for _, box in row]


def layer(name: str, stage: int, **changes: Any) -> dict[str, Any]:
    """A layer with one part."""
    part = item("part", stages=[stage])
    return item(name, part, stages=[stage], **changes)


def test_the_inside_of_equal_boxes_is_written_once():
    layers = [layer(f"layers.{i}", stage=i // 2) for i in range(4)]
    boxes = Boxes(item("", *layers), CROSSING)
    shapes = {box["shape"] for box in shown(boxes)}
    assert len(shapes) == 1
    assert set(boxes.templates) == shapes
    assert [box["inside"] for box in shown(boxes)] == [None] * 4
    assert [box["stages"] for box in shown(boxes)] == [[0], [0], [1], [1]]


def test_what_differs_inside_is_written_for_itself():
    layers = [layer("a", 0), layer("b", 0, forward_s=0.5)]
    boxes = Boxes(item("", *layers), CROSSING)
    assert boxes.templates == {}
    forward = [dict(box["inside"]["facts"])["forward"] for box in shown(boxes)]
    assert forward == ["1.00 ms", "500 ms"]


def test_a_stage_is_said_where_it_is_not_all_around():
    one = Boxes(item("", layer("a", 0), layer("b", 0)), CROSSING)
    assert [box["stages"] for box in shown(one)] == [[], []]
    two = Boxes(item("", layer("a", 0), layer("b", 1)), CROSSING)
    assert [box["stages"] for box in shown(two)] == [[0], [1]]
    assert cuts(two.root) == [{**CROSSING[0], "part": False}]


def cuts(inside: dict[str, Any]) -> list[dict[str, Any]]:
    return [row["cut"] for row in inside["rows"] if "cut" in row]


def test_a_boundary_that_is_drawn_in_two_branches_is_a_part_in_each():
    branches = [
        item(f"{n}", layer("a", 0), layer("b", 1), forward_s=n) for n in (1.0, 2.0)
    ]
    found = shown(Boxes(item("", *branches), CROSSING))
    drawn = [cut for box in found for cut in cuts(box["inside"])]
    assert drawn == [{**CROSSING[0], "part": True}] * 2


def test_what_is_cut_is_open_at_first_as_far_as_there_is_room():
    cut = item("cut", layer("a", 0), layer("b", 1))
    box = shown(Boxes(item("", cut), CROSSING))[0]
    assert box["open"]
    assert not any(inner["open"] for _, inner in box["inside"]["rows"][0]["boxes"])
    many = item("cut", *(item(f"p.{i}", stages=[i % 2]) for i in range(80)))
    assert not shown(Boxes(item("", many), CROSSING))[0]["open"]


def test_recomputation_is_said_by_the_outermost_box_that_has_all_of_it():
    part = item("part", recomputed=1.0)
    whole = item("whole", part, recomputed=1.0)
    (box,) = shown(Boxes(item("", whole, recomputed=0.5), CROSSING))
    assert box["recomputed"] == "recomputed"
    assert box["inside"]["rows"][0]["boxes"][0][1]["recomputed"] == ""
    partly = item("whole", part, item("rest"), recomputed=0.5)
    (box,) = shown(Boxes(item("", partly, recomputed=0.2), CROSSING))
    assert box["recomputed"] == "partly recomputed"


def test_lines_are_said_in_words_and_one_label_sums_the_lanes_into_a_box():
    kib = 1024
    flows = [
        {"from": 0, "to": 1, "bytes": 4, "crossing_bytes": 0},
        {"from": 1, "to": 2, "bytes": 4, "crossing_bytes": 0},
        {"from": 2, "to": 3, "bytes": kib, "crossing_bytes": kib},
        {"from": 0, "to": 3, "bytes": kib, "crossing_bytes": kib},
        {"from": 1, "to": 3, "bytes": 4, "crossing_bytes": 4},
        {"from": 0, "to": 3, "tie": "a.weight"},
    ]
    children = [item(name, stages=[name == "d"]) for name in "abcd"]
    root = Boxes(item("", *children, flows=flows), CROSSING).root
    assert sorted(root["words"]) == [
        "a and d share a.weight",
        "a to b: 4 B",
        "a to d: 1.00 KiB, 1.00 KiB to a later stage",
        "b to c: 4 B",
        "b to d: 4 B, 4 B to a later stage",
        "c to d: 1.00 KiB, 1.00 KiB to a later stage",
    ]
    edges = [edge for edge in root["edges"] if edge[3] == "crossing"]
    labels = {(edge[0], edge[1]): edge[4] for edge in edges}
    assert labels == {(2, 3): "", (0, 3): "1.00 KiB + 4 B", (1, 3): ""}
    assert {edge[3] for edge in root["edges"]} == {"data", "crossing", "tie"}
