"""Small problems that are easy to reason about by hand."""

from __future__ import annotations

from partitioner.solve import Problem, Unit, Value


def chain(
    works=(1.0, 1.0, 1.0, 1.0), *, hops=None, stages=2, micro_batches=4, **fields
) -> Problem:
    """Return units in a row, each with half of its work forwards."""
    hops = hops or [0.0] * (len(works) - 1)
    saved = fields.pop("saved", [0] * len(works))
    static = fields.pop("static", [0] * len(works))
    blocks = fields.pop("blocks", range(len(works)))
    trainable = fields.pop("trainable", [True] * len(works))
    pins = fields.pop("pins", [None] * len(works))
    wire = fields.pop("wire_bytes", 0)
    fields.setdefault(
        "in_flight", tuple(min(stages - s, micro_batches) for s in range(stages))
    )
    return Problem(
        units=tuple(
            Unit(
                name=f"u{index}",
                forward_s=work / 2,
                backward_s=work / 2,
                saved_bytes=saved[index],
                static_bytes=static[index],
                trainable=trainable[index],
                block=blocks[index],
                pinned_stage=pins[index],
            )
            for index, work in enumerate(works)
        ),
        values=tuple(
            Value(producer=i, consumers=(i + 1,), hop_s=hop, wire_bytes=wire)
            for i, hop in enumerate(hops)
        ),
        stages=stages,
        micro_batches=micro_batches,
        **fields,
    )


def layers(count: int, per_layer: int, *, stages: int, **fields) -> Problem:
    """Return a transformer-like chain: residual sums, dear and cheap units, views."""
    units: list[Unit] = []
    values: list[Value] = []

    def add(work, block, reads, hop_s=0.01):
        index = len(units)
        units.append(
            Unit(
                name=f"u{index}",
                forward_s=work,
                backward_s=2 * work,
                saved_bytes=100 if work else 0,
                static_bytes=1000 if work > 1 else 0,
                trainable=work > 1,
                block=block,
            )
        )
        for read in reads:
            value = values[read]
            values[read] = Value(
                producer=value.producer,
                consumers=(*value.consumers, index),
                hop_s=value.hop_s,
                wire_bytes=value.wire_bytes,
            )
        values.append(Value(producer=index, consumers=(), hop_s=hop_s, wire_bytes=50))
        return index

    mask = add(0.001, -1, [])
    last = add(2.0, -1, [])
    for layer in range(count):
        entry = last
        for step in range(per_layer - 1):
            work = (3.0 + layer % 3, 0.0, 0.01)[step % 3]
            reads = [last, mask] if step == 0 else [last]
            last = add(work, layer, reads, hop_s=0.05)
        last = add(0.01, layer, [last, entry])
    micro_batches = fields.setdefault("micro_batches", 16)
    return Problem(
        units=tuple(units),
        values=tuple(value for value in values if value.consumers),
        stages=stages,
        in_flight=tuple(min(stages - s, micro_batches) for s in range(stages)),
        **fields,
    )
