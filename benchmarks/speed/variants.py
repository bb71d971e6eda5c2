"""The variants of one model: what is compared with what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.speed.hand_written import hand_written, one_device, parts_of
from benchmarks.speed.torch_pipelining import TorchRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.speed.ours import Planner
    from benchmarks.speed.runner import Runner
    from benchmarks.speed.setting import Setting
    from partitioner import Plan

__all__ = ["Variant", "variants"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to train the model.

    Args:
        name: ``eager/…`` or ``compiled/…``.
        build: Makes it on this rank; all ranks call together.
        predict: The planner's seconds of a step; None: it predicts none.
        cut: What its stages hold, which run one micro-batch after another: the first
            hand-written layer of each and their number, or a plan. None: the stages
            are another variant's, fed otherwise or in another order.
    """

    name: str
    build: Callable[[], Runner]
    predict: Callable[[], float] | None = None
    cut: Callable[[], tuple[int, ...] | Plan] | None = None

    @property
    def kind(self) -> str:
        """How its stages run: ``"eager"`` or ``"compiled"``."""
        return self.name.partition("/")[0]


def variants(setting: Setting, planner: Planner) -> Iterator[Variant]:
    """Return all variants of one model, the eager ones first."""
    for compiled in (False, True):
        yield from _one_f_one_b(setting, planner, compiled=compiled)
        yield from _dual(setting, planner, compiled=compiled)


def _one_f_one_b(
    setting: Setting, planner: Planner, *, compiled: bool
) -> Iterator[Variant]:
    kind = "compiled" if compiled else "eager"
    yield Variant(
        name=f"{kind}/one-gpu",
        build=partial(one_device, setting, compiled=compiled),
        cut=lambda: (0, len(setting.workload.layers())),
    )
    stages = planner.stages
    seen: set[tuple[int, ...]] = set()
    for method in ("parameters", "uniform"):
        parts = parts_of(setting, method, stages)
        if parts not in seen:
            seen.add(parts)
            yield _hand(setting, planner, f"{kind}/hand-{method}", parts)
            yield _hand(setting, planner, f"{kind}/stock-{method}", parts, stock=True)
    for parts in _every_cut(setting, stages):
        if parts not in seen:
            name = f"{kind}/hand-cut-{parts[1]:02d}"
            yield _hand(setting, planner, name, parts)
    yield from _plans(planner, kind)


def _every_cut(setting: Setting, stages: int) -> Iterator[tuple[int, ...]]:
    """Return every whole-layer cut in two; more stages have too many."""
    layers = len(setting.workload.layers())
    if stages == 2:  # noqa: PLR2004 - see above
        yield from ((0, cut, layers) for cut in range(2, layers - 1))


def _hand(
    setting: Setting,
    planner: Planner,
    name: str,
    parts: tuple[int, ...],
    *,
    stock: bool = False,
) -> Variant:
    compiled = name.startswith("compiled/")

    def predict() -> float:
        return planner.plan_at(parts, compiled=compiled).simulation.step_s

    return Variant(
        name=name,
        build=partial(
            hand_written, setting, parts, compiled=compiled, on_device=not stock
        ),
        predict=predict,
        cut=None if stock else lambda: parts,
    )


def _plans(planner: Planner, kind: str) -> Iterator[Variant]:
    """Return ours, by what the plan is told, and both at the planner's whole layers."""
    compiled = kind == "compiled"

    def ours(name: str, *, alone: bool = True, **told: Any) -> Variant:
        plan = partial(
            planner.plan, compiled=compiled, **{"whole_layers": False} | told
        )
        return Variant(
            name=f"{kind}/ours-{name}",
            build=lambda: planner.run(plan(), compiled=compiled),
            predict=lambda: plan().simulation.step_s,
            cut=plan if alone else None,
        )

    yield ours("layers", whole_layers=True)
    yield ours("free")
    if planner.setting.device.type == "cuda":
        yield ours("graphs", cuda_graphs=True)
    yield ours("ahead", schedule="eager-1f1b", alone=False)
    if not compiled:
        yield from _eager_alone(planner)
    yield from _planned(planner, kind)


def _eager_alone(planner: Planner) -> Iterator[Variant]:
    """Return what does not run compiled."""
    plan = partial(planner.plan, compiled=False, whole_layers=False)
    yield Variant(
        name="eager/ours-zero-bubble",
        build=lambda: planner.run(plan(), zero_bubble=True),
        predict=lambda: plan().simulate("zb-h1").step_s,
    )
    if planner.setting.workload.torch_pipelines:
        yield Variant(name="eager/torch-1f1b", build=lambda: _torch(planner))


def _planned(planner: Planner, kind: str) -> Iterator[Variant]:
    """Return a pipeline by hand, and ours, at the planner's whole-layer cut."""
    compiled = kind == "compiled"

    def parts() -> tuple[int, ...]:
        return planner.parts_of(planner.plan(compiled=compiled, whole_layers=True))

    def same() -> Plan:
        return planner.plan_at(parts(), compiled=compiled)

    yield Variant(
        name=f"{kind}/hand-planned",
        build=lambda: hand_written(planner.setting, parts(), compiled=compiled),
        predict=lambda: same().simulation.step_s,
        cut=parts,
    )
    yield Variant(
        name=f"{kind}/ours-planned",
        build=lambda: planner.run(same(), compiled=compiled, on_device=True),
        predict=lambda: same().simulation.step_s,
    )


def _torch(planner: Planner) -> Runner:
    plan = planner.plan(compiled=False, whole_layers=True)
    return TorchRunner(planner.setting, planner.paths_of(planner.parts_of(plan)))


def _dual(setting: Setting, planner: Planner, *, compiled: bool) -> Iterator[Variant]:
    kind = "compiled" if compiled else "eager"
    chunks = 2 * planner.stages
    if setting.micro_batches < chunks:
        return
    for method in ("parameters", "uniform"):
        parts = parts_of(setting, method, chunks)
        yield Variant(
            name=f"{kind}/hand-dualpipev-{method}",
            build=partial(hand_written, setting, parts, compiled=compiled, dual=True),
        )

    def plan(*, whole_layers: bool) -> Any:
        return planner.plan(
            compiled=compiled, whole_layers=whole_layers, schedule="dualpipev"
        )

    yield Variant(
        name=f"{kind}/hand-dualpipev-planned",
        build=lambda: hand_written(
            setting,
            planner.parts_of(plan(whole_layers=True)),
            compiled=compiled,
            dual=True,
        ),
        predict=lambda: plan(whole_layers=True).simulation.step_s,
    )
    for name, whole_layers in (("layers", True), ("free", False)):
        yield Variant(
            name=f"{kind}/ours-dualpipev-{name}",
            build=lambda whole=whole_layers: planner.run(  # type: ignore[misc]
                plan(whole_layers=whole), compiled=compiled
            ),
            predict=lambda whole=whole_layers: (
                plan(  # type: ignore[misc]
                    whole_layers=whole
                ).simulation.step_s
            ),
        )
