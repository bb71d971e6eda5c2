"""Plans large models of well-known shapes, recorded on ``meta`` down to operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from diffusers import UNet2DConditionModel

from partitioner.capture import capture
from partitioner.cost import price, problem, resolve
from partitioner.solve import solve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partitioner.costed import CostedGraph

__all__ = ["STAGES", "Row", "record", "traced_rows"]

STAGES = (4, 8, 16, 64)


@dataclass(frozen=True)
class Row:
    """One model at one number of stages."""

    model: str
    units: int
    stages: int
    gap: float
    solve_s: float
    cpu_s: float
    solver: str
    proof: str


def _llama_405b() -> tuple[Any, dict[str, Any]]:
    config = transformers.LlamaConfig(
        hidden_size=16384, intermediate_size=53248, num_hidden_layers=126,
        num_attention_heads=128, num_key_value_heads=8, vocab_size=128256,
        max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), _tokens(1, 4096)


def _mixtral_8x22b() -> tuple[Any, dict[str, Any]]:
    config = transformers.MixtralConfig(
        hidden_size=6144, intermediate_size=16384, num_hidden_layers=56,
        num_attention_heads=48, num_key_value_heads=8, vocab_size=32768,
        num_local_experts=8, num_experts_per_tok=2, use_cache=False,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config), _tokens(1, 4096)


def _t5_11b() -> tuple[Any, dict[str, Any]]:
    config = transformers.T5Config(
        d_model=1024, d_kv=128, d_ff=65536, num_layers=24, num_decoder_layers=24,
        num_heads=128, vocab_size=32128, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    decoder = {"decoder_input_ids": torch.zeros(8, 512, dtype=torch.long)}
    model = transformers.T5ForConditionalGeneration(config)
    return model, {**_tokens(8, 512), **decoder}


def _swin_large() -> tuple[Any, dict[str, Any]]:
    config = transformers.SwinConfig(
        image_size=384, window_size=12, embed_dim=192, depths=[2, 2, 18, 2],
        num_heads=[6, 12, 24, 48], num_labels=1000,
    )  # fmt: skip
    model = transformers.SwinForImageClassification(config)
    return model, {"pixel_values": torch.zeros(16, 3, 384, 384)}


def _sdxl_unet() -> tuple[Any, dict[str, Any]]:
    unet: Any = UNet2DConditionModel
    model = unet(
        sample_size=128, block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", *2 * ("CrossAttnDownBlock2D",)),
        up_block_types=(*2 * ("CrossAttnUpBlock2D",), "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10), attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048, use_linear_projection=True,
    )  # fmt: skip
    return model, {
        "sample": torch.zeros(4, 4, 128, 128),
        "timestep": torch.zeros(4),
        "encoder_hidden_states": torch.zeros(4, 77, 2048),
    }


def _tokens(samples: int, length: int) -> dict[str, Any]:
    return {"input_ids": torch.zeros(samples, length, dtype=torch.long)}


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "Llama-405B": _llama_405b,
    "T5-11B": _t5_11b,
    "SDXL U-Net": _sdxl_unet,
    "Swin-L": _swin_large,
    "Mixtral-8x22B": _mixtral_8x22b,
}


def record(name: str) -> CostedGraph:
    """Record and price a model whose weights never exist."""
    with torch.device("meta"):
        model, inputs = MODELS[name]()
    cpu = {key: torch.zeros_like(value, device="cpu") for key, value in inputs.items()}
    graph = capture(model, cpu, dtype=torch.bfloat16)
    return price(graph, profile=resolve("h100"))


def traced_rows(solver: str, clock: Callable[[], float]) -> Iterator[Row]:
    """Yield a row per model and number of stages; ``clock`` gives CPU seconds."""
    for name in MODELS:
        costed = record(name)
        for stages in STAGES:
            statement, _ = problem(costed, stages=stages, micro_batches=4 * stages)
            before_s = clock()
            found = solve(statement, solver=solver, gap=0.01)
            yield Row(
                model=name,
                units=len(statement.units),
                stages=stages,
                gap=found.gap,
                solve_s=found.solve_s,
                cpu_s=clock() - before_s,
                solver=found.solver,
                proof=found.proof,
            )
