"""Plan a large Llama that exists on ``meta`` only: seconds by step, and peak memory.

    python benchmarks/plan_on_meta.py --layers 32 --stages 8

Prints one line of JSON; nothing of the model is ever allocated.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from partitioner.capture import capture
from partitioner.cost import price, problem, resolve
from partitioner.solve import solve

KIB_PER_GIB = 2**20


def llama_on_meta(layers: int) -> LlamaForCausalLM:
    """Return a Llama with the widths of the 8B model."""
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
        max_position_embeddings=8192,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    options = parser.parse_args()

    model = llama_on_meta(options.layers)
    tokens = torch.zeros(1, options.length, dtype=torch.long)
    marks = [time.perf_counter()]
    graph = capture(model, {"input_ids": tokens}, dtype=torch.bfloat16)
    marks.append(time.perf_counter())
    costed = price(graph, profile=resolve("h100"))
    statement, _ = problem(costed, stages=options.stages, micro_batches=32)
    marks.append(time.perf_counter())
    assignment = solve(statement)
    marks.append(time.perf_counter())

    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "nodes": len(graph.graph.nodes),
        "capture_s": round(marks[1] - marks[0], 2),
        "price_s": round(marks[2] - marks[1], 2),
        "solve_s": round(marks[3] - marks[2], 2),
        "total_s": round(marks[3] - marks[0], 2),
        "peak_rss_gib": round(peak_kib / KIB_PER_GIB, 3),
        "gap": assignment.gap,
        "on_meta": all(p.device.type == "meta" for p in model.parameters()),
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
