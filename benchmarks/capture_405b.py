"""Record a Llama of 405B shape on ``meta``, next to one ``torch.export`` of it.

    python benchmarks/capture_405b.py

Prints CPU seconds (all of it runs in one thread, so that other work on the machine does
not count) of one recording, of all recordings that a plan needs (both modes and
every free size), of one export, and their ratios, in one process after a warm-up.
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
from partitioner.capture.inputs import resolve_example
from partitioner.capture.session import Session

KIB_PER_GIB = 2**20


def llama_on_meta(layers: int) -> LlamaForCausalLM:
    """Return a Llama with the widths of the 405B model."""
    config = LlamaConfig(
        hidden_size=16384, intermediate_size=53248, num_hidden_layers=layers,
        num_attention_heads=128, num_key_value_heads=8, vocab_size=128256,
        max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=126)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--without-export", action="store_true")
    options = parser.parse_args()

    inputs = {"input_ids": torch.zeros(1, options.length, dtype=torch.long)}
    capture(llama_on_meta(1), inputs)  # imports and caches

    model = llama_on_meta(options.layers)
    start = time.process_time()
    Session(model, resolve_example(model, inputs), None).record(training=True)
    one_s = time.process_time() - start

    start = time.process_time()
    graph = capture(model, inputs)
    all_s = time.process_time() - start
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_GIB

    report = {
        "nodes": len(graph.graph.nodes),
        "one_recording_s": round(one_s, 2),
        "all_recordings_s": round(all_s, 2),
        "peak_rss_gib": round(peak_gib, 3),
    }
    if not options.without_export:
        tokens = {
            "input_ids": torch.zeros(1, options.length, dtype=torch.long).to("meta")
        }
        start = time.process_time()
        torch.export.export(model, (), tokens, strict=False)
        export_s = time.process_time() - start
        report |= {
            "export_s": round(export_s, 2),
            "export_to_one": round(export_s / one_s, 2),
            "export_to_all": round(export_s / all_s, 2),
        }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
