"""Hand-made plan and verification dictionaries, for the renderers alone."""

from __future__ import annotations

from typing import Any

MIB = 2**20
GIB = 2**30


def stage_document(index: int, modules: list[str], **changes: Any) -> dict[str, Any]:
    """One entry of a plan's ``stages``, with ``changes`` put over the defaults."""
    defaults: dict[str, Any] = {
        "index": index,
        "modules": modules,
        "parameters": 81_912_576,
        "forward_flops": 123_456_789_012,
        "backward_flops": 246_913_578_024,
        "forward_s": 0.00123,
        "backward_s": 0.00246,
        "recompute_s": 0.0,
        "communication_s": 0.0,
        "time_s": 0.00369,
        "memory_bytes": 12 * GIB,
        "memory": {
            "weight_bytes": 512 * MIB,
            "gradient_bytes": 512 * MIB,
            "master_bytes": 0,
            "optimizer_bytes": 2 * GIB,
            "static_bytes": 3 * GIB,
            "saved_bytes": 2 * GIB,
            "received_bytes": 0,
            "sent_kept_bytes": 128 * MIB,
            "wire_bytes": 128 * MIB,
            "peak_bytes": 384 * MIB,
            "recompute_peak_bytes": 384 * MIB,
            "reserved_bytes": 128 * MIB,
            "transient_bytes": 64 * MIB,
            "freed_bytes": 0,
            "tail_transient_bytes": 0,
            "step_bytes": GIB,
        },
        "memory_limit_bytes": 24 * GIB,
        "sent_bytes": 3 * MIB // 2,
        "checkpointed": [],
    }
    assert changes.keys() <= defaults.keys()
    return {**defaults, **changes}


def plan_document(**changes: Any) -> dict[str, Any]:
    """A plan of two stages, with ``changes`` put over its top level."""
    first = ["wte", "h.0", "h.1", "h.2", "h.3 (part)"]
    defaults: dict[str, Any] = {
        "schema_version": 1,
        "kind": "fx-partitioner plan",
        "provenance": {
            "fx_partitioner": "0.1.0",
            "torch": "2.13.0",
            "model_class": "models.gpt.TinyGPT",
            "fingerprint": "0f" * 32,
            "solver": "cbc",
            "proof": "solved to the target",
            "solve_s": 0.71,
            "profile": "h100-80g",
            "prices": "h100-80g's profile",
            "dtype": "float32",
        },
        "options": {
            "stages": 2,
            "micro_batches": 8,
            "schedule": "1f1b",
            "optimizer": "adamw",
        },
        "objective_s": 0.1,
        "bound_s": 0.099,
        "gap": 0.01,
        "bubble_share": 0.2,
        "simulation": {
            "schedule": "1f1b",
            "step_s": 0.095,
            "bubble_share": 0.18,
            "ranks": [],
        },
        "bottleneck_stage": 1,
        "stages": [
            stage_document(0, first, checkpointed=["h.0", "h.1"], recompute_s=0.0005),
            stage_document(
                1,
                ["h.3 (part)", "h.4", "ln_f"],
                sent_bytes=0,
                communication_s=0.00002,
                time_s=0.00371,
            ),
        ],
        "cluster": None,
        "loss": None,
        "ties": [{"parameter": "wte.weight", "stages": [0, 1]}],
        "guards": [],
        "assumptions": [],
        "warnings": [],
        "unpriced": [],
        "costs": [],
    }
    assert changes.keys() <= defaults.keys()
    return {**defaults, **changes}


def verification_document(**changes: Any) -> dict[str, Any]:
    """A verification that passed, with ``changes`` put over its top level."""
    errors = {
        "max_output_error": 0.0,
        "max_gradient_error": 2e-7,
        "max_buffer_error": 0.0,
    }
    defaults: dict[str, Any] = {
        "ok": True,
        "tolerance": 1e-5,
        "modes": {"train": errors, "eval": {**errors, "max_output_error": 3e-6}},
        "per_parameter": {"wte.weight": 2e-7, "ln_f.bias": 0.0},
    }
    assert changes.keys() <= defaults.keys()
    return {**defaults, **changes}
