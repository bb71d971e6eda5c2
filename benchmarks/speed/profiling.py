"""Where a step's time goes on each stage, by the engine's instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.speed.timing import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.speed.runner import EngineRunner

__all__ = ["profiled"]

_PARTS = {
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "RecvActivation": "waits for activations",
    "RecvGrad": "waits for gradients",
    "SendActivation": "sends",
    "SendGrad": "sends",
    "CommitP2P": "exchanges",
    "LoadMicroBatch": "loads",
    "OptimizerStep": "optimizer",
    "ReduceGrads": "reduces",
    "ReduceTiedGrads": "reduces",
}


def profiled(
    runner: EngineRunner, device: torch.device, trace: Path | None = None
) -> dict[str, Any]:
    """Return the seconds of one step by what they were spent on, on this rank.

    ``stream`` is what the compute stream saw between the beginning and the end of each
    kind of instruction. ``kernels`` is what kernels themselves took in another step, by
    kind; ``gaps`` is what the compute stream stood still in forward, backward and
    optimizer because the host had not launched anything.

    Args:
        runner: Takes the steps.
        device: This rank's.
        trace: A file for what host and device do in one more step.
    """
    found: dict[str, Any] = {"stream": _stream(runner, device)}
    if device.type == "cuda":
        found |= _kernels(runner)
        own = sum(found["stream"][k] for k in ("forward", "backward", "optimizer"))
        found["gaps"] = own - found["kernels"]["compute"] - found["kernels"]["copies"]
    step = sum(found["stream"].values())
    compute = found.get("kernels", {}).get("compute", step - _idle(found["stream"]))
    found["bubble"] = 1 - compute / step
    if trace is not None:
        _export(runner, trace)
    return found


def _export(runner: EngineRunner, file: Path) -> None:
    """Write torch's trace of one step: operations of the host, launches, kernels."""
    with profile() as trace:
        runner.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    file.parent.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(file))


def _idle(stream: dict[str, float]) -> float:
    waits = ("waits for activations", "waits for gradients", "exchanges", "rest")
    return sum(stream[name] for name in waits)


def _stream(runner: EngineRunner, device: torch.device) -> dict[str, float]:
    """Mark the stream around every instruction of one step."""
    engine = runner.engine
    clock, names = Clock(device), ["rest"]

    def marked(name: str, run: Any) -> Any:
        def instruction(engine: Any, *args: Any, **kwargs: Any) -> Any:
            clock.mark()
            names.append(name)
            result = run(engine, *args, **kwargs)
            clock.mark()
            names.append("rest")
            return result

        return instruction

    original = engine._INSTRUCTION_MAP  # noqa: SLF001 - DeepSpeed has no public name
    engine._INSTRUCTION_MAP = {  # noqa: SLF001
        kind: marked(_PARTS.get(kind.__name__, "rest"), run)
        for kind, run in original.items()
    }
    try:
        clock.mark()
        runner.step()
        clock.mark()
    finally:
        engine._INSTRUCTION_MAP = original  # noqa: SLF001
    totals = dict.fromkeys([*_PARTS.values(), "rest"], 0.0)
    for name, seconds in zip(names, clock.intervals(), strict=True):
        totals[name] += seconds
    return totals


def _kernels(runner: EngineRunner) -> dict[str, Any]:
    """Trace the kernels of one step."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        runner.step()
        torch.cuda.synchronize()
    totals = {"compute": 0.0, "messages": 0.0, "copies": 0.0}
    launches, attention = 0, set()
    for event in trace.events():
        if event.device_type.name != "CUDA":
            continue
        name = event.name.lower()
        kind = "messages" if "nccl" in name else "compute"
        kind = "copies" if name.startswith(("memcpy", "memset")) else kind
        totals[kind] += event.time_range.elapsed_us() / 1e6
        launches += 1
        if any(word in name for word in ("flash", "fmha", "sdpa")):
            attention.add(event.name[:60])
    return {
        "kernels": totals,
        "launches": launches,
        "attention": sorted(attention),
    }
