from __future__ import annotations

from typing import Any

from partitioner.report.tuning import tuning_text


def row(name: str, **fields: Any) -> dict[str, Any]:
    nothing = (
        "micro_batches",
        "step_s",
        "samples_per_s",
        "efficiency",
        "bubble_share",
        "memory_bytes",
        "measured_step_s",
        "measured_memory_bytes",
    )
    return {
        **dict.fromkeys(nothing),
        "name": name,
        "reason": "",
        "advice": "",
        "measured_reason": "",
        **fields,
    }


def document(**fields: Any) -> dict[str, Any]:
    return {
        "model_class": "somewhere.LongModelNameForCausalLM",
        "profile": "h100-80g",
        "dtype": "bfloat16",
        "batch": 4096,
        "micro_batch_samples": 4,
        "gpus": 128,
        "nodes": 16,
        "memory_limit_bytes": 80 * 2**30,
        "one_gpu_step_s": 123.0,
        "measured_on": None,
        "rows": [
            row("1 GPU", memory_bytes=2**37, reason="stage 0 needs much", advice="buy"),
            row(
                "128 stages × 128, dualpipev",
                micro_batches=1024,
                step_s=123.4e-3,
                samples_per_s=123_456.0,
                efficiency=0.9321,
                bubble_share=0.0312,
                memory_bytes=1000 * 2**20 - 1,
            ),
        ],
        "best": 1,
        "launch": "deepspeed --num_gpus 128 train.py",
        **fields,
    }


def test_it_fits_80_columns_with_the_longest_of_everything():
    lines = tuning_text(document()).splitlines()
    assert max(map(len, lines)) <= 80
    joined = " ".join(" ".join(lines).split())
    assert "on 128 × h100-80g on 16 nodes, 80.0 GiB each" in joined
    assert "1024 123 ms 123 K 93.2 % 3.12 % 1000 MiB" in joined


def test_what_is_out_is_marked_and_says_why():
    text = tuning_text(document())
    assert "1 GPU !" in text
    assert "! 1 GPU: stage 0 needs much (buy)" in text
    assert "against one GPU with memory enough: 123 s" in " ".join(text.split())


def test_the_best_is_marked_and_launched():
    text = tuning_text(document())
    assert "dualpipev *" in " ".join(text.split())
    assert "Best: 128 stages × 128, dualpipev, 996.76 times one GPU." in text
    assert "Launch: deepspeed --num_gpus 128 train.py" in text


def test_where_nothing_fits_it_says_so():
    rows = [row("1 GPU", reason="no", advice="")]
    text = tuning_text(document(rows=rows, best=None, launch=None, one_gpu_step_s=None))
    assert text.splitlines()[-2:] == ["! 1 GPU: no", "No layout fits."]


def test_what_was_measured_stands_next_to_the_prediction():
    one, many = document()["rows"]
    measured = {"measured_step_s": 2 * many["step_s"], "measured_memory_bytes": 2**34}
    rows = [one | {"measured_reason": "out of memory on rank 0: much"}, many | measured]
    lines = tuning_text(document(rows=rows, measured_on="NVIDIA H200")).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "1024 123 ms 247 ms 123 K" in text
    assert "! 1 GPU: out of memory on rank 0: much" in text
    assert "Measured: 128 stages × 128, dualpipev, 247 ms (+100 %), 16.0 GiB" in text
    assert "Measured on NVIDIA H200, with the optimizer's step" in text
    assert "Best: 128 stages × 128, dualpipev, by what was measured." in text
    assert "Measured" not in tuning_text(document())
