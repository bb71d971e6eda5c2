"""Whether a checkpoint is of this model, and how its run differs from this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from partitioner.errors import PlanMismatchError
from partitioner.runtime.agreement import versions
from partitioner.runtime.checkpoint.identity import is_foreign

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partitioner.runtime.checkpoint.manifest import Manifest, PlanIdentity
    from partitioner.runtime.checkpoint.optimizers import LiveOptimizer
    from partitioner.runtime.checkpoint.saved_model import SavedModel
    from partitioner.runtime.checkpoint.saved_optimizer import SavedOptimizer

__all__ = ["check_model", "check_trained", "differences"]

_SHOWN = 5


def check_model(
    held: Sequence[Mapping[str, Any]],
    plan: PlanIdentity,
    saved: SavedModel,
    *,
    strict: bool,
) -> None:
    """Compare names, shapes and ties with the checkpoint's.

    Args:
        held: The ``state_dict`` of each of this stage's segments.
        plan: The plan that is trained now.
        saved: The checkpoint.
        strict: A name that only one side has is a fault.

    Raises:
        PlanMismatchError: They differ; says in what.
    """
    mine = {name: value for segment in held for name, value in segment.items()}
    faults = [
        f"{name} has shape {tuple(value.shape)}, was {saved.record(name).shape}"
        for name, value in mine.items()
        if isinstance(value, Tensor)
        and name in saved
        and tuple(value.shape) != saved.record(name).shape
    ]
    faults += saved.split_ties(plan)
    if strict:
        faults += [
            f"{name} is not in the checkpoint" for name in mine if name not in saved
        ]
        faults += [
            f"{name} is not in this model"
            for name in saved.records
            if name not in plan.aliases and name not in mine and not is_foreign(name)
        ]
    _raise(faults, "the checkpoint is of another model")


def check_trained(
    live: LiveOptimizer, model: SavedModel, saved: SavedOptimizer
) -> None:
    """Compare what is trained with what was.

    Raises:
        PlanMismatchError: A parameter was not trained when the checkpoint was saved,
            though its stage held it.
    """
    names = [slot.name for group in live.groups for slot in group.slots]
    faults = [
        f"{name} was not trained"
        for name in names
        if name not in saved and name in model and not model.was_unplaced(name)
    ]
    _raise(
        faults,
        "the checkpoint has no optimizer state of some parameters",
        hint="train the same parameters, or load with load_optimizer_states=False",
    )


def differences(plan: PlanIdentity, manifest: Manifest) -> list[str]:
    """Say how the run that was saved differs from this one."""
    then = manifest.plan
    told = []
    if (then.parts, then.recomputed) != (plan.parts, plan.recomputed):
        told.append(
            f"the checkpoint is of another plan ({then.stages} stages, segments "
            f"{list(then.parts)}; now {plan.stages}, {list(plan.parts)}): every "
            "parameter and its optimizer state were taken over by name"
        )
    if then.fingerprint != plan.fingerprint:
        told.append(
            "the model was recorded differently (inputs, code or versions); its "
            "parameters and buffers are the same"
        )
    told += [
        f"saved with {name} {manifest.versions.get(name, 'unknown')}, loaded with {now}"
        for name, now in versions().items()
        if manifest.versions.get(name) != now
    ]
    return told


def _raise(faults: Sequence[str], what: str, hint: str = "") -> None:
    if not faults:
        return
    shown = "; ".join(faults[:_SHOWN])
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    raise PlanMismatchError(f"{what}: {shown}{more}", hint=hint)
