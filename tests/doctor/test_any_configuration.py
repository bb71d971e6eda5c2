"""Whatever stands in a file, the doctor says something and does not fall over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitioner.doctor import examine
from partitioner.doctor.reading import known_keys
from tests.doctor.cases import plan_document

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.floats(allow_nan=False, width=16),
    st.sampled_from(
        ["auto", "1e-3", "cpu", "AdamW", "WarmupDecayLR", "fp32", "", "2", "no"]
    ),
)
INNER = st.sampled_from(
    [
        "enabled", "stage", "type", "params", "device", "overlap_comm", "lr",
        "offload_optimizer", "offload_param", "loss_scale", "initial_scale_power",
        "use_reentrant", "activation_checkpoint_interval", "grad_accum_dtype",
        "max_grad_norm", "total_num_steps", "data_sampling", "writer", "nonsense",
    ]
)  # fmt: skip
VALUES: Any = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.dictionaries(INNER, inner, max_size=4), st.lists(inner, max_size=2)
    ),
    max_leaves=6,
)
CONFIGS = st.dictionaries(
    st.sampled_from([*sorted(known_keys()), "seed"]), VALUES, max_size=6
)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(config=CONFIGS, planned=st.booleans())
def test_any_configuration_is_examined_and_mended_once(
    config: dict[str, Any], planned: bool
):
    known: dict[str, Any] = {"plan": plan_document()} if planned else {}
    found = examine(config, **known)
    assert examine(found.fixed, **known).edits == ()
    if not found.edits:
        assert found.fixed == config


@pytest.mark.parametrize("key", sorted(known_keys()))
@pytest.mark.parametrize("value", [True, 1, "x", [], {}, {"enabled": True}, None])
def test_any_value_of_a_known_key_is_examined(key: str, value: Any):
    examine({key: value})
