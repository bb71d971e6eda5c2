"""Engine → a checkpoint: DeepSpeed's files, ours beside them, and a manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import (
    TorchCheckpointEngine,
)

from partitioner.errors import OptionError, PartitionerError
from partitioner.runtime.agreement import (
    agree,
    gather,
    raise_on_all_ranks,
    versions,
)
from partitioner.runtime.checkpoint.files import (
    HashingEngine,
    sync_folder,
    write_durably,
)
from partitioner.runtime.checkpoint.identity import parameter_names
from partitioner.runtime.checkpoint.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    OptimizerRecord,
    RankRecord,
    StageRecord,
)
from partitioner.runtime.checkpoint.optimizers import live_optimizer
from partitioner.runtime.checkpoint.process_state import random_states
from partitioner.runtime.checkpoint.save_layers import save_layers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partitioner.runtime.checkpoint.folders import CheckpointFolder
    from partitioner.runtime.checkpoint.identity import PlanRecord
    from partitioner.runtime.checkpoint.process_state import Stateful

__all__ = ["ENGINE_KEYS", "save"]

ENGINE_KEYS = frozenset(
    {
        "module",
        "buffer_names",
        "optimizer",
        "param_shapes",
        "frozen_param_shapes",
        "shared_params",
        "frozen_param_fragments",
        "lr_scheduler",
        "data_sampler",
        "random_ltd",
        "skipped_steps",
        "global_steps",
        "global_samples",
        "dp_world_size",
        "mp_world_size",
        "checkpoint_parallel_dims",
        "ds_config",
        "ds_version",
        "universal_checkpoint_info",
    }
)
"""What DeepSpeed writes beside the user's ``client_state``."""


def save(
    engine: Any,
    record: PlanRecord,
    folder: CheckpointFolder,
    *,
    client_state: Mapping[str, Any],
    attached: Mapping[str, Stateful],
    latest: bool,
) -> None:
    """Write a checkpoint; every rank must call. It is whole, or it is not there.

    Raises:
        CheckpointError: Something cannot be written; on all ranks.
        PlanMismatchError: The ranks save different things.
        RuntimeGuardError: The engine is of a kind whose state has no place by name.
    """
    same = {
        "tag": folder.tag,
        "step": engine.global_steps,
        "plan": record.identity.fingerprint,
        "parts": list(record.identity.parts),
        "latest": latest,
    }
    agree({"fingerprint": same}, what="saving a checkpoint")
    with raise_on_all_ranks("preparing the checkpoint's folder"):
        _check(engine, client_state)
        if engine.global_rank == 0:
            folder.prepare()
    try:
        with raise_on_all_ranks("writing the checkpoint"):
            told = _write(engine, record, folder.partial, client_state, attached)
    except PartitionerError:
        if engine.global_rank == 0:  # a full disk is not left full
            folder.discard()
        raise
    everything = gather(told)
    with raise_on_all_ranks("completing the checkpoint"):
        if engine.global_rank == 0:
            manifest = _manifest(engine, record, folder.tag, everything)
            write_durably(folder.partial / MANIFEST, manifest.to_json())
            folder.publish()
            if latest:
                folder.make_latest()


def _check(engine: Any, client_state: Mapping[str, Any]) -> None:
    taken = sorted(ENGINE_KEYS & set(client_state))
    if taken:
        raise OptionError(
            f"client_state holds {', '.join(taken)}, which are DeepSpeed's own keys",
            hint="use other names",
        )
    if type(engine.checkpoint_engine) is not TorchCheckpointEngine:
        raise OptionError(
            f"the configuration asks for a {type(engine.checkpoint_engine).__name__}, "
            "whose files are not complete when saving returns",
            hint="leave it out: a plan's checkpoints are written and hashed in one go",
        )
    if engine.zero_nvme_offload_optimizer():
        raise OptionError(
            "the optimizer's state is offloaded to NVMe, where no checkpoint by name "
            "finds it",
            hint="offload it to the CPU",
        )


def _write(
    engine: Any,
    record: PlanRecord,
    folder: Path,
    client_state: Mapping[str, Any],
    attached: Mapping[str, Stateful],
) -> tuple[dict[str, FileRecord], dict[str, Any]]:
    """Write this rank's files; return them with what the manifest says of the rank."""
    writer = HashingEngine()
    usual, engine.checkpoint_engine = engine.checkpoint_engine, writer
    try:
        # The halves of DeepSpeed's save_checkpoint, without the barriers between, at
        # which ranks would wait for one that has failed.
        engine._save_checkpoint(str(folder.parent), folder.name, dict(client_state))  # noqa: SLF001
        if engine.save_zero_checkpoint:
            engine._save_zero_checkpoint(str(folder.parent), folder.name)  # noqa: SLF001
    finally:
        engine.checkpoint_engine = usual
    layers = (
        save_layers(engine, record, folder, writer) if _replica(engine) == 0 else []
    )
    own = f"rank_{engine.global_rank:03d}-process_states.pt"
    writer.save(_process_state(engine, attached), os.fspath(folder / own))
    sync_folder(folder)
    stage = engine.stage_id
    mine = {
        "layers": layers,
        "rank": RankRecord(stage=stage, replica=_replica(engine), file=own),
        "file": Path(engine._get_ckpt_name("", "")).name,  # noqa: SLF001 - DeepSpeed's own name of it
        "optimizer": _optimizer_record(engine, record),
    }
    return writer.written, mine


def _process_state(engine: Any, attached: Mapping[str, Stateful]) -> dict[str, Any]:
    head = engine.module.loss_fn
    loss = head.user_loss_state() if engine.module.computes_loss() else None
    return {
        "random": random_states(),
        "attached": {name: item.state_dict() for name, item in attached.items()},
        "loss": loss,
    }


def _optimizer_record(engine: Any, record: PlanRecord) -> OptimizerRecord | None:
    """Describe this rank's optimizer; ``files`` has this replica's alone."""
    live = live_optimizer(engine, parameter_names(engine.module, record.identity))
    if live is None:
        return None
    if live.kind == "partitioned":
        file = Path(engine._get_zero_ckpt_name("", "")).name  # noqa: SLF001 - DeepSpeed's own name of it
    else:
        file = Path(engine._get_ckpt_name("", "")).name  # noqa: SLF001
    return OptimizerRecord(
        kind=live.kind,
        name=type(live.base).__name__,
        groups=live.groups,
        files=(file,),
    )


def _replica(engine: Any) -> int:
    replica: int = engine.grid.get_data_parallel_id()
    return replica


def _manifest(
    engine: Any,
    record: PlanRecord,
    tag: str,
    told: list[tuple[dict[str, FileRecord], dict[str, Any]]],
) -> Manifest:
    files: dict[str, FileRecord] = {}
    for written, _ in told:
        files |= written
    ranks = [mine["rank"] for _, mine in told]
    stages = [
        _stage([mine for _, mine in told if mine["rank"].stage == stage])
        for stage in range(engine.grid.pipe_parallel_size)
    ]
    return Manifest(
        tag=tag,
        global_steps=engine.global_steps,
        versions=versions(),
        plan=record.identity,
        replicas=engine.grid.get_data_parallel_world_size(),
        layers=tuple(layer for _, mine in told for layer in mine["layers"]),
        stages=tuple(stages),
        ranks=tuple(ranks),
        files=dict(sorted(files.items())),
    )


def _stage(replicas: list[dict[str, Any]]) -> StageRecord:
    replicas.sort(key=lambda mine: mine["rank"].replica)
    first: OptimizerRecord | None = replicas[0]["optimizer"]
    if first is not None:
        files = tuple(mine["optimizer"].files[0] for mine in replicas)
        first = first.model_copy(update={"files": files})
    return StageRecord(file=replicas[0]["file"], optimizer=first)
