"""What real engines hold, next to what their plan says."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from partitioner import InitialWeights, Plan, partition
from partitioner.cost.live import LiveBytes

__all__ = ["CASES", "Case", "Found", "own_tensors", "run"]

STAGES, MICRO_BATCHES, STEPS = 2, 3, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """Options of ``partition``, and whether the peak is looked for (which is slow)."""

    options: Mapping[str, Any]
    peak: bool = False
    model: str = "gpt2"
    """Key of ``MODELS``."""


@dataclass(kw_only=True)
class Found:
    """What one rank held and what its plan says of its stage."""

    peak_bytes: int
    predicted_bytes: int
    kinds: dict[str, int]
    """The most bytes of each kind that were there in a backward."""
    predicted_kinds: dict[str, int]
    sent_kept: int
    """The most tensors that had been sent and still were there in a backward."""
    optimizer: str
    offloaded: bool


# What a GPU's Adam does; a CPU's goes from parameter to parameter otherwise.
ADAMW = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True, "foreach": True}}


BF16 = {"dtype": "bfloat16"}

CASES = {
    "fp32": Case(options={"checkpointing": "none"}, peak=True),
    "fp32-all": Case(options={"checkpointing": "all"}, peak=True),
    "bf16": Case(options={**BF16, "checkpointing": "none"}, peak=True),
    "bf16-all": Case(options={**BF16, "checkpointing": "all"}, peak=True),
    "fp32-eager": Case(
        options={"checkpointing": "none", "schedule": "eager-1f1b"}, peak=True
    ),
    "fp32-zero": Case(options={"zero_stage": 1}),
    "bf16-zero": Case(options={**BF16, "zero_stage": 1}),
    "bf16-offload": Case(options={**BF16, "zero_stage": 1, "offload_optimizer": True}),
    "t5-bf16": Case(options={**BF16, "checkpointing": "none"}, peak=True, model="t5"),
    "t5-bf16-all": Case(
        options={**BF16, "checkpointing": "all"}, peak=True, model="t5"
    ),
}


def run(names: Iterable[str], peaks: bool) -> list[Found]:
    """Train under each case on this rank's stage."""
    return [_run(CASES[name], peak=peaks and CASES[name].peak) for name in names]


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=128, n_layer=4, n_head=4, vocab_size=4000, use_cache=False
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def _t5() -> nn.Module:
    """Return layers that share a learnt bias and, decoding, what was encoded."""
    config = transformers.T5Config(
        d_model=128, d_kv=32, d_ff=512, num_layers=6, num_decoder_layers=6,
        num_heads=4, vocab_size=1000, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    model: nn.Module = transformers.T5ForConditionalGeneration(config)
    return model


MODELS = {"gpt2": _gpt2, "t5": _t5}


def _batch(model: str) -> dict[str, Tensor]:
    if model == "gpt2":
        ids = torch.zeros(4, 256, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}
    ids, decoded = (torch.zeros(4, n, dtype=torch.long) for n in (256, 128))
    return {"input_ids": ids, "decoder_input_ids": decoded, "labels": decoded}


def _run(case: Case, *, peak: bool) -> Found:
    replicas = int(os.environ["WORLD_SIZE"]) // STAGES
    batch = _batch(case.model)
    with torch.device("meta"):
        model = MODELS[case.model]()
    plan = partition(
        model,
        STAGES,
        example_inputs=batch,
        micro_batches=MICRO_BATCHES,
        device="cpu",
        replicas=replicas,
        **case.options,
    )
    config = {"steps_per_print": 10**9, "optimizer": ADAMW}
    live = LiveBytes()
    with live if peak else contextlib.nullcontext():
        engine, *_ = plan.initialize(config=config, weights=InitialWeights(seed=0))
        watch = _Watch(engine)
        for step in range(STEPS):
            gc.collect()
            if step:  # the first one makes the optimizer's states
                live.peak_bytes = 0
            engine.train_batch(itertools.repeat(batch))
    return _found(plan, engine, watch, live.peak_bytes)


def _found(plan: Plan, engine: Any, watch: _Watch, peak_bytes: int) -> Found:
    stage = plan.stages[engine.stage_id]
    held = stage.held
    return Found(
        peak_bytes=peak_bytes,
        predicted_bytes=stage.memory_bytes,
        kinds=watch.kinds,
        predicted_kinds={
            "weights": held.weight_bytes,
            "gradients": held.gradient_bytes,
            "masters": held.master_bytes,
            "states": held.optimizer_bytes,
        },
        sent_kept=watch.sent_kept,
        optimizer=type(engine.optimizer).__name__,
        offloaded=bool(getattr(engine.optimizer, "cpu_offload", False)),
    )


class _Watch:
    """Looks at an engine's own tensors whenever a parameter gets its gradient."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.kinds: dict[str, int] = {}
        self.sent_kept = 0
        for parameter in engine.module.parameters():
            parameter.register_hook(self._look)

    def _look(self, gradient: Tensor) -> Tensor:
        sent = [one for one in self.engine.pipe_buffers["outputs"] if one is not None]
        self.sent_kept = max(self.sent_kept, len(sent))
        for kind, tensors in own_tensors(self.engine).items():
            self.kinds[kind] = max(self.kinds.get(kind, 0), _bytes(tensors))
        return gradient


def own_tensors(engine: Any) -> dict[str, list[Tensor]]:
    """Return an engine's own tensors, by what they are for."""
    module, optimizer = engine.module, engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    weights = [*module.parameters(), *module.buffers()]
    own = {tensor.untyped_storage().data_ptr() for tensor in weights}
    stepped = [p for group in inner.param_groups for p in group["params"]]
    gradients = getattr(optimizer, "fp32_groups_gradients_flat", None)
    if gradients is None:  # else those of one micro-batch come and go beside them
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
    states = [t for state in inner.state.values() for t in state.values()]
    return {
        "weights": weights,
        "gradients": gradients,
        "masters": [p for p in stepped if p.untyped_storage().data_ptr() not in own],
        "states": [t for t in states if isinstance(t, Tensor) and t.numel() > 1],
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Sum the bytes of the memory behind some tensors, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())
