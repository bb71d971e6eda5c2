"""Under Lightning on two GPUs, over NCCL, a fit is that of one process on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.distributed.gpus import needs_two_gpus, on_two_gpus
from tests.distributed.lightning_gpus_stage import RUN
from tests.distributed.lightning_runs import Fitted, fit
from tests.distributed.test_lightning import check

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), needs_two_gpus]

BOUND = 5e-5
"""float32 on a GPU against float32 on a CPU, after eight steps of AdamW."""


def test_a_fit_on_gpus_is_that_of_one_process_and_resumes(tmp_path):
    alone = fit(replace(RUN, folder=str(tmp_path)), piped=False)
    longer = {**RUN.trainer, "max_epochs": 3}
    run = replace(RUN, folder=str(tmp_path), resume=alone.checkpoint, trainer=longer)
    expected = [alone, fit(run, piped=False)]
    for found in on_two_gpus("tests.distributed.lightning_gpus_stage", tmp_path):
        for mine, theirs in zip(found, expected, strict=True):
            check(Fitted(**mine), theirs, BOUND)
            assert {each.device for each in mine["state"].values()} == {
                torch.device("cpu")
            }
