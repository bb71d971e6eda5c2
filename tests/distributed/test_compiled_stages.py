"""A pipeline that is compiled is built of repeated modules, any other of whole ones."""

from __future__ import annotations

import pytest

from partitioner import partition
from tests.distributed.launch import launch
from tests.models import MODELS

pytestmark = pytest.mark.distributed


def whole_modules() -> list[set[str]]:
    """Return what the only stage calls whole, as it is and compiled."""
    entry = MODELS["t5-labels"]
    plan = partition(entry.model(), 1, example_inputs=entry.example(), device="cpu")
    found = []
    for compile_it in (False, {"backend": "eager"}):
        module = plan.pipeline_module(compile=compile_it)
        (segment,) = module.segments()
        assert segment.is_compiled is bool(compile_it)
        found.append(set(segment.whole_modules))
    return found


def test_repeated_modules_are_compiled_one_by_one():
    ((plain, compiled),) = launch(1, whole_modules, timeout_s=200.0)
    assert not {name for name in plain if ".block." in name}
    assert {"encoder.block.0", "decoder.block.0"} <= compiled
    assert not {"encoder", "decoder"} & compiled
