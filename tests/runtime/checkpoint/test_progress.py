"""Loss scale and generators go on where they were."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaleConfig

from partitioner.runtime.checkpoint.files import HashingEngine, read_states
from partitioner.runtime.checkpoint.process_state import (
    random_states,
    restore_random_states,
)
from partitioner.runtime.checkpoint.progress import Progress, _scale, apply_progress


def zero_scaler() -> DynamicLossScaler:
    return DynamicLossScaler(
        init_scale=2.0**10, scale_window=2, min_scale=1, delayed_shift=2,
        consecutive_hysteresis=False,
    )  # fmt: skip


def plain_scaler() -> LossScaleConfig:
    return LossScaleConfig(torch.float16, True, 1.0, None)


def used(scaler: DynamicLossScaler) -> DynamicLossScaler:
    """As after two overflows; its own method wants a process group to tell so."""
    scaler.cur_scale, scaler.cur_iter = 2.0**8, 7
    scaler.last_overflow_iter, scaler.cur_hysteresis = 5, 1
    return scaler


def taken_over(found: Any, optimizer: Any) -> None:
    saved = SimpleNamespace(
        optimizer=SimpleNamespace(loss_scaler=lambda stage, state: found),
        engine=lambda stage: {},
    )
    loss_fn = SimpleNamespace(load_user_loss_state=lambda state: None)
    engine = SimpleNamespace(
        optimizer=optimizer, module=SimpleNamespace(loss_fn=loss_fn)
    )
    progress = Progress(scale=_scale(saved, 0))  # type: ignore[arg-type]
    apply_progress(engine, progress, {})


def test_zeros_scale_goes_on():
    then, now = used(zero_scaler()), zero_scaler()
    assert vars(then) != vars(now)
    taken_over(then, SimpleNamespace(loss_scaler=now))
    assert vars(now) == vars(then)


def test_a_scale_goes_over_to_another_zero_stage():
    then, now = used(zero_scaler()), plain_scaler()
    taken_over(then, SimpleNamespace(loss_scale_config=now))
    names = ("cur_scale", "cur_iter", "last_overflow_iter")
    assert all(getattr(now, name) == getattr(then, name) for name in names)
    back = zero_scaler()
    written = {"dynamic_loss_scale": True, **{n: getattr(now, n) for n in names}}
    taken_over(written, SimpleNamespace(loss_scaler=back))
    assert all(getattr(back, name) == getattr(then, name) for name in names)


def test_a_scale_that_the_user_has_fixed_stays():
    now = LossScaleConfig(torch.float16, False, 128.0, None)
    taken_over(used(zero_scaler()), SimpleNamespace(loss_scale_config=now))
    assert now.cur_scale == 128.0


def draws() -> tuple[Any, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.rand(3).tolist(),
    )


def test_every_generator_goes_on_through_a_file(tmp_path):
    draws()  # leaves half of a pair of Gaussian numbers in Python's and NumPy's
    HashingEngine().save(random_states(), str(tmp_path / "states.pt"))
    expected = draws()
    draws()
    restore_random_states(read_states(tmp_path / "states.pt"))
    assert draws() == expected
