"""A pipeline trains exactly like the model in one process."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.distributed.case_parts import MICRO_BATCHES, STEPS
from tests.distributed.cases import CASES
from tests.distributed.launch import launch
from tests.distributed.training import Outcome, run_pipeline, run_single

pytestmark = pytest.mark.distributed

BY_WORLD = {
    1: ["mixed-1"],
    2: [
        "mixed-2",
        "tied-2",
        "tied-2-zero",
        "tied-2-bf16",
        "tied-2-bf16-zero",
        "tied-2-bf16-zero-fp32",
        "tied-2-zero-accumulator",
        "tied-late",
        "plain",
        "checkpointed",
        "random",
        "random-again",
        "random-checkpointed",
        "labelled",
    ],
    3: [
        "mixed-3",
        "mixed-3-checkpointed",
        "tied-3",
        "kinds-3",
        "kinds-3-checkpointed",
    ],
    4: ["tied-2", "tied-2-zero", "kinds-4", "kinds-2"],
}
TIED = ("embed.weight", "head.weight", "head.shared.weight")
OTHER_OPTIMIZERS = [
    "tied-2-zero",
    "tied-2-bf16",
    "tied-2-bf16-zero",
    "tied-2-bf16-zero-fp32",
    "tied-2-zero-accumulator",
]


def train_all(names: list[str]) -> dict[str, Outcome]:
    return {name: run_pipeline(CASES[name]()) for name in names}


@cache
def trained(world: int) -> list[dict[str, Outcome]]:
    """Train all cases of a world size, once, in one process group."""
    return launch(world, train_all, BY_WORLD[world], timeout_s=240)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, expected.to(found.dtype), rtol=tolerance, atol=tolerance
    )


EXACT = [
    (world, name)
    for world in BY_WORLD
    for name in BY_WORLD[world]
    if not any(word in name for word in ("bf16", "accumulator", "random"))
]


@pytest.mark.parametrize(("world", "name"), EXACT)
def test_losses_parameters_and_buffers_equal_one_process(world, name):
    case = CASES[name]()
    stages = len(case.bounds) - 1
    expected = run_single(case, replicas=world // stages)
    ranks = [outcomes[name] for outcomes in trained(world)]
    seen = set()
    for rank in ranks:
        close(torch.tensor(rank.losses), torch.tensor(expected.losses))
        close(torch.tensor(rank.evaluated), torch.tensor(expected.evaluated))
        for key, value in rank.state.items():
            if not key.endswith("visits"):  # each replica counts its own
                close(value, expected.state[key])
            seen.add(key)
    assert seen == set(expected.state)
    if case.clipping:
        assert min(expected.norms) > 2 * case.clipping


@pytest.mark.parametrize(
    ("world", "name"),
    [(w, name) for w in BY_WORLD for name in BY_WORLD[w] if name.startswith("tied")],
)
def test_tied_copies_are_equal_bit_for_bit(world, name):
    copies = [
        outcomes[name].state[key]
        for outcomes in trained(world)
        for key in TIED
        if key in outcomes[name].state
    ]
    assert len(copies) == (world if world != 3 else 2)
    assert all(torch.equal(copies[0], copy) for copy in copies[1:])


@pytest.mark.parametrize("name", OTHER_OPTIMIZERS)
def test_other_optimizers_see_the_norm_over_all_stages(name):
    expected = run_single(CASES[name]())
    for outcomes in trained(2):
        close(torch.tensor(outcomes[name].norms), torch.tensor(expected.norms), 2e-2)


def test_the_engine_holds_no_outputs_between_steps():
    assert all(outcome.held == 0 for ranks in trained(2) for outcome in ranks.values())


@pytest.mark.parametrize(("world", "stages"), [(4, 2), (3, 3), (4, 4)])
def test_a_boundary_costs_one_backward(world, stages):
    """However many values cross it; the buffers of this case count them."""
    for outcomes in trained(world):
        state = outcomes[f"kinds-{stages}"].state
        visits = {key: n for key, n in state.items() if key.endswith("visits")}
        assert len(visits) == 1
        assert next(iter(visits.values())).item() == STEPS * MICRO_BATCHES


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("plain", "checkpointed"),
        ("random", "random-again"),
        ("random", "random-checkpointed"),
    ],
)
def test_equal_seeds_give_equal_runs_recomputed_or_not(one, other):
    for outcomes in trained(2):
        first, second = outcomes[one], outcomes[other]
        assert first.losses == second.losses
        assert all(
            torch.equal(value, second.state[key]) for key, value in first.state.items()
        )


def test_draws_on_a_later_stage_are_not_those_of_one_process():
    """As docs/parity.md says: each process has generators of its own."""
    case = CASES["random"]()
    assert trained(2)[0]["random"].losses[0] != run_single(case).losses[0]
    case = CASES["plain"]()
    close(
        torch.tensor(trained(2)[0]["plain"].losses[0]),
        torch.tensor(run_single(case).losses[0]),
    )
