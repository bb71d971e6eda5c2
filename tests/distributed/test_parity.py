"""The partitioned model trains exactly like the original: real engine, real processes.

SGD with momentum, fp32, dropout 0: losses and final parameters within 1e-6; AdamW:
losses within 1e-5. Every group of cases of one stage count shares one launch.
"""

from __future__ import annotations

import functools

import pytest
import torch

from tests.distributed.launch import launch
from tests.distributed.parity import Case, Outcome, train_original, train_stages

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

LOSS_TOLERANCE = {"sgd": 1e-6, "adamw": 1e-5}
STATE_TOLERANCE = 1e-6
TIMEOUT_S = 600.0

PLANNED = [("gpt2", 2), ("gpt2", 3), ("gpt2", 4), ("t5", 3), ("bert", 3), ("resnet", 2)]


@functools.cache
def original(case: Case) -> Outcome:
    return train_original(case)


def check(case: Case, ranks: list[Outcome]) -> None:
    """Compare every rank with the original."""
    # The original knows nothing of stages, cuts and checkpoints.
    reference = original(
        Case(
            model=case.model,
            stages=1,
            micro_batches=case.micro_batches,
            optimizer=case.optimizer,
            clipping=case.clipping,
            steps=case.steps,
        )
    )
    tolerance = LOSS_TOLERANCE[case.optimizer]
    for outcome in ranks:
        assert outcome.losses == pytest.approx(reference.losses, rel=tolerance), case
        assert outcome.evaluated == pytest.approx(reference.evaluated, rel=tolerance)
    # A tied tensor is held under any of its names; every parameter is held somewhere.
    first = reference.aliases
    held = {first.get(name) for outcome in ranks for name in outcome.state}
    assert held - {None} == set(first.values()), case
    if case.optimizer == "sgd":
        for outcome in ranks:
            for name, value in outcome.state.items():
                expected = reference.state[name]
                largest = max(1.0, expected.abs().max().item())
                difference = (value - expected).abs().max().item()
                assert difference <= STATE_TOLERANCE * largest, f"{case}: {name}"


def check_ties(ranks: list[Outcome], names: tuple[str, ...]) -> None:
    """Tied copies are equal, bit for bit, on all stages that hold one."""
    copies = [o.state[name] for o in ranks for name in names if name in o.state]
    holders = sum(any(name in o.state for name in names) for o in ranks)
    assert holders > 1, "the tie does not cross a boundary: nothing was tested"
    for copy in copies[1:]:
        assert torch.equal(copies[0], copy)


TIES = {
    "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "t5": (
        "shared.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
    ),
}


def run(cases: list[Case]) -> None:
    (stages,) = {case.stages for case in cases}
    ranks = launch(stages, train_stages, cases, timeout_s=TIMEOUT_S)
    for index, case in enumerate(cases):
        outcomes = [rank[index] for rank in ranks]
        check(case, outcomes)
        if case.model in TIES:
            check_ties(outcomes, TIES[case.model])


@pytest.mark.parametrize(("model", "stages"), PLANNED)
def test_the_plan_trains_like_the_original(model, stages):
    run(
        [
            Case(model=model, stages=stages, optimizer=optimizer, checkpointing=again)
            for optimizer in ("sgd", "adamw")
            for again in ("none", "all")
        ]
    )


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("model", ["gpt2", "t5", "bert", "resnet"])
def test_random_legal_cuts_train_like_the_original(model, stages):
    """Ten cuts for each model over the three stage counts (3 + 3 + 4)."""
    seeds = range(stages * 10, stages * 10 + (4 if stages == 4 else 3))
    run(
        [
            Case(
                model=model, stages=stages, cut_seed=seed, steps=3, checkpointing=again
            )
            for seed, again in zip(seeds, ("none", "all", "none", "all"), strict=False)
        ]
    )


ATTENTION, MLP, GLUE = r"attn|[Aa]ttention", r"mlp|DenseReluDense|\.output", ""
RESIDUAL = r"stage\d\.\d"


@pytest.mark.parametrize(
    ("model", "through"),
    [
        ("gpt2", (ATTENTION, MLP, GLUE)),
        ("t5", (ATTENTION, MLP, GLUE)),
        ("bert", (ATTENTION, MLP, GLUE)),
        ("resnet", (RESIDUAL, GLUE)),
    ],
)
def test_cuts_through_attention_mlp_and_glue_train_like_the_original(model, through):
    run(
        [
            Case(model=model, stages=3, cut_seed=seed, through=pattern, steps=3)
            for seed, pattern in enumerate(through)
        ]
    )


@pytest.mark.parametrize("model", ["gpt2-labels", "t5-labels", "llama", "vit"])
def test_other_models_train_like_the_original(model):
    """Models that compute their own loss from dict batches, and two more families."""
    run([Case(model=model, stages=3, steps=3)])


def test_fewer_micro_batches_than_stages():
    run([Case(model="gpt2", stages=4, micro_batches=2)])


@pytest.mark.parametrize(("model", "stages"), [("gpt2", 3), ("t5", 3)])
def test_active_clipping_with_ties(model, stages):
    case = Case(model=model, stages=stages, clipping=0.05)
    norms = train_original(case).norms
    assert min(norms) > case.clipping, "clipping is not active: nothing was tested"
    run([case, Case(model=model, stages=stages, clipping=0.05, checkpointing="all")])
