"""Tests of partitioner.report.table."""

from __future__ import annotations

import pytest
from rich.console import Console

from partitioner.report.table import plan_report, plan_text
from tests.report.documents import plan_document, stage_document


def rows(text: str) -> list[str]:
    """Lines of the table's body, blanks squeezed."""
    body = text.split("─\n", 1)[1].split("\n\n", 1)[0]
    return [" ".join(line.split()) for line in body.splitlines()]


def test_title_says_what_the_plan_is_for() -> None:
    title = plan_text(plan_document()).splitlines()[0]
    assert (
        title == "TinyGPT: 2 stages, 8 micro-batches, 1f1b, float32, adamw, on h100-80g"
    )


def test_one_stage_is_singular() -> None:
    plan = plan_document(stages=[stage_document(0, ["net"])], bottleneck_stage=0)
    plan["options"]["micro_batches"] = 1
    assert plan_text(plan).startswith("TinyGPT: 1 stage, 1 micro-batch, ")


def test_each_stage_shows_every_column() -> None:
    assert rows(plan_text(plan_document())) == [
        "0 wte 81.9 M 123 G 1.23 ms 12.0 GiB 1.50 MiB 2",
        "h.0…2 247 G 2.46 ms / 24.0 GiB",
        "h.3 (part)",
        "1 h.3 (part) 81.9 M 123 G 1.23 ms 12.0 GiB – –",
        "h.4 247 G 2.46 ms / 24.0 GiB",
        "ln_f",
    ]


def test_headings_are_in_the_documented_order() -> None:
    header = plan_text(plan_document()).splitlines()[2]
    assert header.split() == [
        "Stage",
        "Modules",
        "Params",
        "FLOPs",
        "Time",
        "Memory",
        "Sent",
        "Ckpt",
    ]


def test_no_memory_limit_is_said() -> None:
    stage = stage_document(0, ["net"], memory_limit_bytes=None)
    text = plan_text(plan_document(stages=[stage], bottleneck_stage=0))
    assert "no limit" in text


def test_stage_of_root_code_alone_has_a_row() -> None:
    stages = [stage_document(0, []), stage_document(1, ["net"])]
    assert rows(plan_text(plan_document(stages=stages)))[0].startswith("0 – 81.9 M")


def test_long_lists_of_modules_are_cut_with_a_count() -> None:
    names = [f"block_{letter}" for letter in "abcdefghijklmnopqrst"]
    stages = [stage_document(0, names), stage_document(1, names[:13])]
    text = plan_text(plan_document(stages=stages))
    assert "… 8 more" in text
    assert text.count("block_m") == 1  # 13 names: cutting one would save no line


@pytest.mark.parametrize("width", [80, 100, 160])
def test_fits_its_width_even_with_long_names(width: int) -> None:
    name = (
        "conditional_generation.decoder.block.11.layer.1.EncDecAttention.relative_bias"
    )
    stages = [
        stage_document(
            index,
            [name, f"{name} (part)"],
            parameters=999_499,
            memory_bytes=1023 * 2**20,
            memory_limit_bytes=1023 * 2**30,
            sent_bytes=1023 * 2**20,
        )
        for index in (0, 1)
    ]
    plan = plan_document(
        stages=stages,
        ties=[{"parameter": f"{name}.weight", "stages": list(range(16))}],
        warnings=[f"{name} " * 5],
    )
    text = plan_text(plan, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert name in "".join(text.split())


def test_brackets_in_names_are_not_markup() -> None:
    stages = [stage_document(0, ["parts[bold]"]), stage_document(1, ["b"])]
    plan = plan_document(stages=stages, warnings=["see [red]x[/red]"])
    text = plan_text(plan)
    assert "parts[bold]" in text
    assert "see [red]x[/red]" in text


def test_bottleneck_is_bold_where_there_are_styles() -> None:
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as capture:
        console.print(plan_report(plan_document()))
    bold = [line for line in capture.get().splitlines() if "\x1b[1m" in line]
    assert any("h.4" in line for line in bold)
    assert not any("h.0…2" in line for line in bold)
