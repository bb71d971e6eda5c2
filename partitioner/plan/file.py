"""Plan files: plain JSON out, checked JSON in, and nothing that can run code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from partitioner.capture import capture
from partitioner.capture.inputs import CallArguments
from partitioner.cost import (
    DeviceProfile,
    Measurements,
    counted,
    price,
    problem_for,
    with_given,
)
from partitioner.cost.given import GivenCost
from partitioner.costed import NodeCost
from partitioner.errors import (
    CaptureError,
    CostError,
    OptionError,
    PartitionerError,
    PlanMismatchError,
)
from partitioner.files import write_whole
from partitioner.graph import ModelGraph, info
from partitioner.options import Options
from partitioner.runtime.memory_order import in_order, unusual_order
from partitioner.solve import Assignment, check

if TYPE_CHECKING:
    from partitioner.plan.plan import Plan
    from partitioner.plan.training import TrainablePlan

__all__ = ["load_plan", "payload", "read_document", "save_plan"]

SCHEMA_VERSION = 1
KIND = "fx-partitioner plan"
_MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What reading a file of the wrong form can raise."""


def payload(plan: TrainablePlan) -> dict[str, Any]:
    """Return the decisions that ranks must agree on."""
    return {
        "fingerprint": plan.graph.fingerprint,
        "stage_of": list(plan.assignment.stage_of),
        "recomputed": list(plan.assignment.recomputed),
        "schedule": plan.options.schedule,
    }


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan; an existing file is replaced only when all is written.

    Raises:
        PartitionerError: The example inputs hold something JSON cannot, or the file
            cannot be written.
    """
    args, kwargs = plan.graph.example
    timings = plan.costed.measurements
    content = {
        **plan.to_dict(),
        "profile": asdict(plan.costed.profile),
        "measurements": timings and timings.to_dict(),
        "example": {
            "args": [_encode(value) for value in args],
            "kwargs": {name: _encode(value) for name, value in kwargs.items()},
        },
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_whole(path, text + "\n", "the plan")


def _encode(value: Any) -> Any:
    """Write one example argument: tensors as shape, dtype and order in memory."""
    if isinstance(value, torch.Tensor):
        found: dict[str, Any] = {
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
        }
        if order := unusual_order(value):
            found["order"] = list(order)
        return {"tensor": found}
    if isinstance(value, (type(None), bool, int, float, str)):
        return {"value": value}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(item) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(item) for key, item in value.items()}}
    message = f"an example input is a {type(value).__name__}, which a plan cannot store"
    raise PartitionerError(message, hint="pass tensors, numbers, text and containers")


def _decode(encoded: Any) -> Any:
    if not isinstance(encoded, dict) or len(encoded) != 1:
        raise _malformed(f"example input {encoded!r}")
    ((kind, content),) = encoded.items()
    if kind == "tensor":
        return _decoded_tensor(content)
    if kind == "value" and isinstance(content, (type(None), bool, int, float, str)):
        return content
    if kind == "list":
        return [_decode(item) for item in content]
    if kind == "tuple":
        return tuple(_decode(item) for item in content)
    if kind == "dict":
        return {str(key): _decode(item) for key, item in content.items()}
    raise _malformed(f"example input of kind {kind!r}")


def _decoded_tensor(content: Mapping[str, Any]) -> torch.Tensor:
    shape = [int(size) for size in content["shape"]]
    order = [int(dim) for dim in content.get("order", ())]
    if order and sorted(order) != list(range(len(shape))):
        raise _malformed(f"order in memory {order} of a tensor of shape {shape}")
    return in_order(shape, order, partial(torch.zeros, dtype=_dtype(content["dtype"])))


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise _malformed(f"dtype {name!r}")
    return found


def _malformed(what: str) -> PlanMismatchError:
    hint = "write the plan again with plan.save()"
    return PlanMismatchError(f"the plan file is not valid: {what}", hint=hint)


def load_plan(path: str | Path, model: nn.Module) -> dict[str, Any]:
    """Read a plan file and return the fields of the plan for ``model``.

    Raises:
        PlanMismatchError: The file is no plan of this version, or the model is not
            the one that the plan was made for (says what differs).
    """
    content = read_document(path)
    try:
        return _bind(content, model)
    except (OptionError, CostError) as error:
        raise _malformed(error.message) from error
    except PartitionerError:
        raise
    except _MALFORMED as error:
        raise _malformed(f"{type(error).__name__}: {error}") from error


def read_document(path: str | Path) -> dict[str, Any]:
    """Read a plan file as plain data, without the model that it was made for.

    Raises:
        PlanMismatchError: The file is no plan of this version.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanMismatchError(f"plan file {path} does not exist") from error
    except OSError as error:
        message = f"plan file {path} cannot be read: {error.strerror}"
        raise PlanMismatchError(message) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        message = f"plan file {path} is no JSON: {error}"
        raise PlanMismatchError(message, hint="is it complete?") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise PlanMismatchError(f"{path} is no plan file")
    if content.get("schema_version") != SCHEMA_VERSION:
        found = content.get("schema_version")
        message = f"{path} has schema version {found}, not {SCHEMA_VERSION}"
        raise PlanMismatchError(message, hint="make the plan again with this version")
    return content


def _bind(content: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    example = content["example"]
    args = tuple(_decode(value) for value in example["args"])
    kwargs = {name: _decode(value) for name, value in example["kwargs"].items()}
    provenance = content["provenance"]
    inputs = CallArguments(args=args, kwargs=kwargs)
    dtype = _dtype(provenance["dtype"]) if content["casts"] else None
    try:
        graph = capture(model, inputs, dtype=dtype, **_constraints(content))
    except (CaptureError, OptionError) as error:
        raise _other_model(content, model, error.message) from error
    if graph.fingerprint != provenance["fingerprint"]:
        raise _other_model(content, model, _difference(content, graph))
    options = _options(content["options"])
    timings = content["measurements"]
    priced = price(
        graph,
        profile=DeviceProfile(**content["profile"]),
        measurements=timings
        and Measurements.from_dict(timings, where="the plan file's measurements"),
    )
    if content.get("loss"):
        priced = counted(priced, NodeCost(**content["loss"]))
    costed = with_given(priced, map(GivenCost.from_dict, content["costs"]))
    statement, units = problem_for(costed, options)
    again = set(content["recomputed_units"])
    assignment = Assignment(
        stage_of=tuple(int(content["units"][u.name]) for u in statement.units),
        recomputed=tuple(u.name in again for u in statement.units),
        objective_s=float(content["objective_s"]),
        bound_s=float(content["bound_s"]),
        proof=str(provenance["proof"]),
        solver=str(provenance["solver"]),
        solve_s=float(provenance["solve_s"]),
        warnings=tuple(str(text) for text in content["warnings"]),
    )
    faults = check(statement, assignment)
    if faults:
        message = "the plan file breaks its own limits:\n- " + "\n- ".join(faults)
        raise PlanMismatchError(
            message,
            hint="was it edited, or made by another version? make the plan again",
        )
    return {
        "costed": costed,
        "problem": statement,
        "units": units,
        "assignment": assignment,
        "options": options,
    }


def _constraints(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constraints as ``capture`` takes them: lists of paths."""
    stored = content["constraints"]
    return {
        "leaf": [str(path) for path in stored["leaf"]],
        "keep_together": [[str(p) for p in group] for group in stored["keep_together"]],
        "no_cut_inside": [str(path) for path in stored["no_cut_inside"]],
        "pin": {str(path): int(stage) for path, stage in stored["pin"]},
        "equal_stages": [str(path) for path in stored["equal_stages"]],
    }


def _options(stored: Mapping[str, Any]) -> Options:
    limit = stored["memory_limit_bytes"]
    return Options.checked(
        stages=stored["stages"],
        micro_batches=stored["micro_batches"],
        memory_limit=limit,
        optimizer=str(stored["optimizer"]),
        checkpointing=stored["checkpointing"],
        schedule=stored["schedule"],
        solver=stored["solver"],
        gap=float(stored["gap"]),
        time_limit_s=float(stored["time_limit_s"]),
        objective=stored["objective"],
        devices=stored["devices"],
        cluster=stored.get("cluster"),
        replicas=stored.get("replicas"),
        zero_stage=stored.get("zero_stage", 0),
        offload_optimizer=stored.get("offload_optimizer", False),
        cuda_graphs=stored.get("cuda_graphs", False),
    )


def _other_model(
    content: Mapping[str, Any], model: nn.Module, what: str
) -> PlanMismatchError:
    made_for = content["provenance"]["model_class"]
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    message = f"the plan was made for another model ({made_for}, not this {kind}): "
    hint = "load it with the model it was made for, or call partition() again"
    return PlanMismatchError(message + what, hint=hint)


def _difference(content: Mapping[str, Any], graph: ModelGraph) -> str:
    """Say which operation or weight is the first that differs."""
    planned = content["units"]
    here = {info(node).id for node in graph.graph.nodes}
    missing = [name for name in planned if name not in here]
    if missing:
        return f"{missing[0]} is not in this model ({len(missing)} units differ)"
    made_with = content["provenance"]["torch"]
    return (
        "operations have the same names, but arguments or weights' shapes differ "
        f"(plan: torch {made_with}; here: torch {torch.__version__})"
    )
