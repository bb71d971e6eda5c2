"""For every code a case that shows it, and the nearest one that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.doctor.cases import CLEAN, MACHINE, config, gpu, plan_document, planned

Known = dict[str, Any]
Shown = tuple[dict[str, Any], Known]


def on(**facts: Any) -> Known:
    """Known: a machine with other facts."""
    return {"machine": replace(MACHINE, **facts)}


def env(**variables: str) -> Known:
    return on(environment=variables)


def adam(kind: str = "AdamW", **params: Any) -> dict[str, Any]:
    own = {"lr": 1e-3, "torch_adam": True, **params}
    return config(optimizer={"type": kind, "params": own})


def scheduled(kind: str, **params: Any) -> dict[str, Any]:
    return config(scheduler={"type": kind, "params": params})


def zero(stage: int = 1, **entries: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **entries}}


def fp16(**entries: Any) -> dict[str, Any]:
    return {"fp16": {"enabled": True, **entries}, **zero()}


def with_plan(**options: Any) -> Known:
    return {"plan": plan_document(**options)}


def memory_plan(**memory: int) -> Known:
    document = plan_document()
    for stage in document["stages"]:
        stage["memory_bytes"] = 95
        stage["memory_limit_bytes"] = 100
        stage["memory"].update(memory)
    return {"plan": document}


LAUNCHED = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}
SAMPLING = {"enabled": True, "num_workers": 2, "pin_memory": True}
STEPS = "gradient_accumulation_steps"
TOTAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"


def sampled(**entries: Any) -> dict[str, Any]:
    sampling = {**SAMPLING, **entries}
    return config(data_efficiency={"enabled": True, "data_sampling": sampling})


NO: Known = {}
BF16 = {"bf16": {"enabled": True}}
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
OFFLOADED: dict[str, Any] = {"offload_optimizer": {"device": "cpu"}}
TWO_NODES = (gpu(0), gpu(1))
CASES: dict[str, tuple[Shown, Shown]] = {
    "unknown-key": (
        (config(learning_rate=1), NO),
        (config(steps_per_print=10), NO),
    ),
    "refused-key": (
        (config(**zero(allgather=True)), NO),
        (config(**zero(allgather_partitions=True)), NO),
    ),
    "removed-key": (
        (config(amp={"enabled": True}), NO),
        (config(torch_autocast={"enabled": False}), NO),
    ),
    "refused-value": (
        (config(**zero(reduce_bucket_size=0)), NO),
        (config(**zero(reduce_bucket_size=1)), NO),
    ),
    "refused-together": (
        (config(fp16={"enabled": True, "fp16_master_weights_and_grads": True}), NO),
        (config(**fp16(fp16_master_weights_and_grads=True)), NO),
    ),
    "deprecated-key": (
        (config(**zero(cpu_offload=False)), NO),
        (config(**zero()), NO),
    ),
    "duplicate-key": ((CLEAN, {"duplicates": ("fp16",)}), (CLEAN, NO)),
    "auto-value": (
        (config(gradient_clipping="auto"), NO),
        (config(**zero(reduce_bucket_size="auto")), NO),  # DeepSpeed drops it there
    ),
    "pipeline-key": (
        (config(pipeline={"partition_method": "parameters"}), NO),
        (config(pipeline={"pipe_partitioned": True}), NO),
    ),
    "pipeline-interval": (
        (planned(pipeline={"activation_checkpoint_interval": 1}), with_plan()),
        (planned(pipeline={"activation_checkpoint_interval": 0}), with_plan()),
    ),
    "pipeline-reentrant": (
        (config(pipeline={"activation_checkpoint_interval": 1}), NO),
        (
            config(
                pipeline={"activation_checkpoint_interval": 1, "use_reentrant": False}
            ),
            NO,
        ),
    ),
    "pipeline-partitioned": (
        (config(pipeline={"grad_partitioned": "false"}), NO),
        (config(pipeline={"grad_partitioned": False}), NO),
    ),
    "dynamic-shape": ((planned(), with_plan()), (CLEAN, NO)),
    "batch-missing": ((config(**{MICRO: None}), NO), (CLEAN, NO)),
    "batch-value": ((config(**{MICRO: 0}), NO), (CLEAN, NO)),
    "batch-product": (
        (config(**{TOTAL: 500}), NO),
        (config(**{TOTAL: 512}), NO),  # two replicas
    ),
    "batch-implicit": (
        (config(**{MICRO: None, TOTAL: 512}), NO),
        (config(**{TOTAL: 512}), NO),
    ),
    "plan-micro-batches": (
        (planned(**{STEPS: 4}), with_plan()),
        (planned(**{STEPS: None}), with_plan()),
    ),
    "plan-batch": (
        (planned(**{TOTAL: 10**4 + 1}), with_plan()),
        (planned(), with_plan()),
    ),
    "bubble": (
        (config(**{STEPS: 4}), {"stages": 2}),
        (config(**{STEPS: 19}), {"stages": 2}),
    ),
    "dualpipev-micro-batches": (
        (planned(**{STEPS: 3}), with_plan(schedule="dualpipev")),
        (planned(**{STEPS: 4}), with_plan(schedule="dualpipev")),
    ),
    "zero-stage": ((config(**zero(2)), NO), (config(**zero(1)), NO)),
    "zero-offload-param": (
        (config(**zero(3, offload_param={"device": "cpu"})), NO),
        (config(**zero(3, offload_param={"device": "none"})), NO),
    ),
    "zero-offload-optimizer": (
        (config(**zero(0, **OFFLOADED)), NO),
        (config(**zero(1, **OFFLOADED)), NO),
    ),
    "zero-overlap": (
        (config(**zero(overlap_comm=True)), NO),
        (config(**zero(overlap_comm=False)), NO),
    ),
    "zero-stage3-key": (
        (config(**zero(stage3_max_live_parameters=10)), NO),
        (config(**zero(reduce_scatter=True)), NO),
    ),
    "zero-optimizer": (
        ({**adam("SGD"), "optimizer": {"type": "SGD", "params": {}}, **zero()}, NO),
        ({**adam(), **zero()}, NO),
    ),
    "zero-cpu-optimizer": (
        ({**adam(torch_adam=False), **zero(**OFFLOADED)}, NO),
        ({**adam(torch_adam=True), **zero(**OFFLOADED)}, NO),
    ),
    "precision-both": ((config(**fp16(), **BF16), NO), (config(**BF16), NO)),
    "plan-precision": (
        (planned(**BF16), with_plan()),
        (planned(bf16={"enabled": False}), with_plan()),
    ),
    "plan-autocast": (
        (planned(torch_autocast={"enabled": True}), with_plan()),
        (planned(torch_autocast={"enabled": False}), with_plan()),
    ),
    "fp16-range": ((config(**fp16()), NO), (config(**BF16), NO)),
    "fp16-static-scale": (
        (config(**fp16(loss_scale=128)), NO),
        (config(**fp16(loss_scale=0)), NO),
    ),
    "fp16-initial-scale": (
        (config(**fp16(initial_scale_power=32)), NO),
        (config(**fp16(initial_scale_power=16)), NO),
    ),
    "fp16-unscaled": (
        (config(fp16={"enabled": True}), NO),
        (config(**fp16()), NO),
    ),
    "gradient-dtype": (
        (config(**BF16, **FP32_SUMS), NO),
        (config(**BF16, **FP32_SUMS, **zero()), NO),
    ),
    "bf16-sums": (
        (config(**BF16, **zero()), NO),
        (config(**BF16, **FP32_SUMS, **zero()), NO),
    ),
    "clipping-default": ((config(gradient_clipping=None), NO), (CLEAN, NO)),
    "clipping-place": ((adam(max_grad_norm=1.0), NO), (adam(), NO)),
    "clipping-norm": (
        (config(gradient_clipping=1.0), NO),
        (planned(gradient_clipping=1.0), with_plan()),
    ),
    "adam-mode": (
        (adam("Adam", weight_decay=0.1), NO),
        (adam("Adam", weight_decay=0.1, adam_w_mode=False), NO),
    ),
    "adam-compiles": (
        (adam(torch_adam=False), NO),
        (adam(torch_adam=True), NO),
    ),
    "optimizer-unknown": (
        (config(optimizer={"type": "OneBitAdam", "params": {}}), NO),
        (config(optimizer={"type": "SGD", "params": {}}), NO),
    ),
    "optimizer-params": (
        (adam(weight_decays=0.1), NO),
        (adam(weight_decay=0.1), NO),
    ),
    "number-as-text": ((adam(lr="1e-3"), NO), (adam(lr=1e-3), NO)),
    "plan-optimizer": (
        (planned(optimizer={"type": "SGD", "params": {}}), with_plan()),
        (planned(), with_plan()),
    ),
    "scheduler-unknown": (
        (scheduled("WarmupLr"), NO),
        (scheduled("WarmupLR"), NO),
    ),
    "scheduler-total-steps": (
        (scheduled("WarmupDecayLR", warmup_max_lr=1e-3), NO),
        (scheduled("WarmupDecayLR", warmup_max_lr=1e-3, total_num_steps=9999), NO),
    ),
    "scheduler-params": (
        (scheduled("OneCycle", cycle_min_lr=0.1), NO),
        (scheduled("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.2), NO),
    ),
    "scheduler-peak": (
        (scheduled("WarmupLR", warmup_max_lr=1e-2), NO),
        (scheduled("WarmupLR", warmup_max_lr=1e-3), NO),
    ),
    "scheduler-warmup": (
        (scheduled("WarmupCosineLR", warmup_num_steps=9, total_num_steps=9), NO),
        (scheduled("WarmupCosineLR", warmup_num_steps=9, total_num_steps=99), NO),
    ),
    "checkpoint-universal": (
        (config(checkpoint={"load_universal": True}), NO),
        (config(checkpoint={"load_universal": False}), NO),
    ),
    "checkpoint-local": (
        (config(checkpoint={"use_node_local_storage": True}), NO),
        (config(checkpoint={"use_node_local_storage": False}), NO),
    ),
    "checkpoint-stage3": (
        (config(**zero(pipeline_loading_checkpoint=True)), NO),
        (config(**zero(pipeline_loading_checkpoint=False)), NO),
    ),
    "checkpoint-elastic": (
        (config(**zero(elastic_checkpoint=True)), NO),
        (config(**zero(elastic_checkpoint=False)), NO),
    ),
    "checkpoint-masters": (
        (config(**BF16, **zero(load_from_fp32_weights=False)), NO),
        (config(**zero(load_from_fp32_weights=False)), NO),
    ),
    "checkpoint-engine": (
        (planned(datastates_ckpt={}), with_plan()),
        (planned(), with_plan()),
    ),
    "memory": ((planned(), with_plan()), (CLEAN, NO)),
    "data-last-batch": ((config(dataloader_drop_last=None), NO), (CLEAN, NO)),
    "data-workers": ((sampled(num_workers=0), NO), (sampled(), NO)),
    "data-cores": (
        (CLEAN, env(LOCAL_WORLD_SIZE="4")),
        (CLEAN, env(LOCAL_WORLD_SIZE="2")),
    ),
    "data-shared-memory": (
        (CLEAN, on(shared_memory_bytes=64 * 2**20)),
        (CLEAN, on(shared_memory_bytes=None)),
    ),
    "deepspeed-version": (
        (CLEAN, {"version": "0.19.2"}),
        (CLEAN, {"version": "0.19.3+cpu"}),
    ),
    "deepspeed-tuples": ((CLEAN, {"stages": 3}), (CLEAN, {"stages": 2})),
    "monitor-package": (
        (config(comet={"enabled": True}), NO),
        (config(csv_monitor={"enabled": True}), NO),
    ),
    "launch-variables": (
        (CLEAN, env(RANK="0", WORLD_SIZE="2")),
        (CLEAN, env(**LAUNCHED)),
    ),
    "launch-processes": (
        (CLEAN, {"processes": 3}),
        (CLEAN, {"processes": 4}),
    ),
    "launch-devices": (
        (CLEAN, env(CUDA_VISIBLE_DEVICES="0", LOCAL_WORLD_SIZE="2")),
        (CLEAN, env(CUDA_VISIBLE_DEVICES="0,1", LOCAL_WORLD_SIZE="2")),
    ),
    "nccl-timeout": (
        (CLEAN, env(DEEPSPEED_TIMEOUT="60")),
        (CLEAN, env(DEEPSPEED_TIMEOUT="5")),
    ),
    "nccl-errors": (
        (CLEAN, env(TORCH_NCCL_ASYNC_ERROR_HANDLING="0")),
        (CLEAN, env(TORCH_NCCL_ASYNC_ERROR_HANDLING="3")),
    ),
    "nccl-names": (
        (CLEAN, env(NCCL_BLOCKING_WAIT="1")),
        (CLEAN, env(TORCH_NCCL_BLOCKING_WAIT="1")),
    ),
    "nccl-interface": (
        (CLEAN, env(NCCL_SOCKET_IFNAME="ib")),
        (CLEAN, env(NCCL_SOCKET_IFNAME="ib,eth")),  # beginnings of names
    ),
    "nccl-switched-off": (
        (CLEAN, env(NCCL_P2P_DISABLE="1")),
        (CLEAN, env(NCCL_IB_DISABLE="1")),  # there is none here
    ),
    "nccl-topology": (
        (CLEAN, env(NCCL_P2P_LEVEL="NVLINK")),
        (CLEAN, env(NCCL_P2P_LEVEL="NVL")),
    ),
    "launch-blocking": (
        (CLEAN, env(CUDA_LAUNCH_BLOCKING="1")),
        (CLEAN, env(CUDA_LAUNCH_BLOCKING="0")),
    ),
    "threads": (
        (CLEAN, env(OMP_NUM_THREADS="8", LOCAL_WORLD_SIZE="2")),
        (CLEAN, env(OMP_NUM_THREADS="4", LOCAL_WORLD_SIZE="2")),
    ),
    "numa-affinity": (
        (CLEAN, on(accelerators=(gpu(1),), cores=(0, 1))),
        (CLEAN, on(accelerators=(gpu(0),), cores=(0, 1))),
    ),
    "pcie-lanes": (
        (CLEAN, on(accelerators=(gpu(width=8),))),
        (CLEAN, on(accelerators=(gpu(width=16),))),
    ),
    "cpu-governor": (
        (CLEAN, on(governor="powersave")),
        (CLEAN, on(governor="performance")),
    ),
    "numa-balancing": (
        (CLEAN, on(numa_balancing=True)),
        (CLEAN, on(numa_balancing=True, node_cores={0: (0, 1)})),
    ),
    "locked-memory": (
        (CLEAN, on(infiniband=("mlx5_0",), locked_memory_bytes=65536)),
        (CLEAN, on(infiniband=(), locked_memory_bytes=65536)),
    ),
    "machine-unknown": ((CLEAN, on(governor=None)), (CLEAN, on())),
}
