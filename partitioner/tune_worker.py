"""One rank of a layout that ``partitioner tune --measure`` runs."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from partitioner import InitialWeights, OptionError
from partitioner.plan import Plan
from partitioner.runtime.agreement import gather
from partitioner.targets import HuggingFaceOptions, open_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from partitioner.targets import Target

__all__ = ["main"]

WARM_UP, COUNTED = 2, 5
_NO_MEMORY = ("out of memory", "can't allocate memory")


def main(path: str) -> None:
    """Run a job, and write into its folder what came of it.

    Args:
        path: A JSON file with ``text`` and ``options`` of the target, ``plan`` and
            ``folder``.
    """
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    rank, folder = int(os.environ["RANK"]), Path(job["folder"])
    try:
        found = _run(job)
    except Exception as error:
        _write(folder / f"error-{rank}.json", {"rank": rank, **_told(error)})
        raise
    if rank == 0:
        _write(folder / "result.json", found)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write at once, for whoever may end this process in the middle."""
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(content), encoding="utf-8")
    aside.replace(path)


def _told(error: BaseException) -> dict[str, Any]:
    chain = list(_chain(error))
    short = next((each for each in chain if _lacks_memory(each)), None)
    said = str(short or error).strip().splitlines() or [""]
    name = type(short or error).__name__
    return {"memory": short is not None, "message": f"{name}: {said[0]}"}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        handled = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or handled


def _lacks_memory(error: BaseException) -> bool:
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(words in str(error).lower() for words in _NO_MEMORY)


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    options = HuggingFaceOptions(**job["options"])
    with open_target(job["text"], options=options, weights=True) as target:
        plan = Plan.load(job["plan"], target.model)
        on_meta = any(each.is_meta for each in target.model.parameters())
        engine, *_ = plan.initialize(
            target.loss_fn or _some_loss,
            weights=InitialWeights(seed=0) if on_meta else None,
            config={"steps_per_print": 10**9},
        )
        batch = [_micro_batch(target, plan)] * plan.options.micro_batches
        took_s = [_step_s(engine, batch) for _ in range(WARM_UP + COUNTED)]
        memory = torch.cuda.max_memory_allocated() if _on_gpu(engine) else 0
        most = max(gather(memory))
        engine.destroy()
    dist.barrier()
    dist.destroy_process_group()
    return {
        "step_s": statistics.median(took_s[WARM_UP:]),
        "memory_bytes": most or None,
    }


def _on_gpu(engine: Any) -> bool:
    return bool(engine.device.type == "cuda")


def _step_s(engine: Any, batch: list[Any]) -> float:
    dist.barrier()
    began_s = time.perf_counter()
    engine.train_batch(iter(batch))
    if _on_gpu(engine):
        torch.cuda.synchronize()
    dist.barrier()
    return time.perf_counter() - began_s


def _micro_batch(target: Target, plan: Plan) -> Any:
    """Return the example inputs as a batch, with the labels of the target."""
    args, kwargs = plan.graph.example
    inputs: Any = target.example_inputs
    if inputs is None:
        inputs = dict(kwargs) if kwargs else args[0] if len(args) == 1 else tuple(args)
    return inputs if target.loss_fn is None else (inputs, target.example_labels)


def _some_loss(output: Any, _labels: Any) -> Tensor:
    """Return the loss that the model computes itself, or what stands in for one."""
    own = getattr(output, "loss", None)
    if own is None and isinstance(output, dict):
        own = output.get("loss")
    if isinstance(own, Tensor):
        return own
    leaves = [
        leaf
        for leaf in pytree.tree_leaves(output)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if not leaves:
        raise OptionError(
            f"the output ({type(output).__name__}) has no tensor with a gradient",
            hint="let the target have a loss_fn and example_labels",
        )
    means = [leaf.float().square().mean() for leaf in leaves]
    return torch.stack(means).sum()


if __name__ == "__main__":
    main(sys.argv[1])
