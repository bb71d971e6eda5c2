"""Both ends read the same, replicas read others, and a resume goes on in mid-epoch."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from partitioner.errors import OptionError
from partitioner.runtime.data import PipelineLoader, Place

SAMPLES = 50


class Numbers:
    """Yields (number, a random number) pairs."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random()


def noisy(samples: list[Any]) -> dict[str, torch.Tensor]:
    """Collate as a masking collator does: under torch's and NumPy's random numbers."""
    return {
        "index": torch.tensor([index for index, _ in samples]),
        "draws": torch.tensor([draw for _, draw in samples], dtype=torch.float64),
        "mask": torch.rand(len(samples)) < np.random.rand(),
    }


def loader(replica: int = 0, replicas: int = 1, **options: Any) -> PipelineLoader:
    place = Place(replica=replica, replicas=replicas, reads=options.pop("reads", True))
    settings = {"batch_size": 3, "step": 2, "collate_fn": noisy, **options}
    return PipelineLoader(Numbers(), place=place, **settings)


def numbers(batches: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def same(left: Any, right: Any) -> bool:
    return all(torch.equal(left[key], right[key]) for key in left)


def test_two_loaders_agree_also_on_random_collation_with_workers_or_without():
    here, there = list(loader()), list(loader(num_workers=2))
    assert len(here) == len(there) == 16
    assert all(same(*pair) for pair in zip(here, there, strict=True))
    assert not torch.equal(here[0]["draws"], here[1]["draws"])


def test_loading_leaves_the_process_s_random_numbers_alone():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    list(loader())
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_replicas_share_out_an_epoch_and_the_next_has_another_order():
    first, second = loader(0, 2), loader(1, 2)
    epochs = [numbers(first) + numbers(second) for _ in range(2)]
    for epoch in epochs:
        seen = list(itertools.chain(*epoch))
        assert len(seen) == len(set(seen)) == 48
    assert epochs[0] != epochs[1]
    assert numbers(loader(seed=1)) != numbers(loader(seed=2))
    assert numbers(loader(shuffle=False))[:2] == [[0, 1, 2], [3, 4, 5]]


def test_without_drop_last_every_sample_is_read():
    made = [loader(replica, 2, drop_last=False) for replica in range(2)]
    seen = [number for each in made for batch in numbers(each) for number in batch]
    assert set(seen) == set(range(SAMPLES))
    assert len(seen) == 2 * 3 * len(made[0]) == 60


def test_a_resumed_loader_goes_on_where_the_other_stopped():
    kept = loader()
    everything = [*kept, *kept]
    stopped = loader(num_workers=1)
    list(itertools.islice(stopped, 16))
    list(itertools.islice(stopped, 6))
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    rest = list(resumed)
    assert resumed.epoch == 1
    assert len(rest) == 10
    assert all(same(*pair) for pair in zip(rest, everything[22:], strict=True))


def test_a_resume_may_use_other_replicas_at_whole_steps():
    one = loader(batch_size=2, step=2)
    read = numbers(itertools.islice(one, 4))
    two = [loader(replica, 2, batch_size=2, step=2) for replica in range(2)]
    for each in two:
        each.load_state_dict(one.state_dict())
    seen = [*read, *numbers(two[0]), *numbers(two[1])]
    flat = list(itertools.chain(*seen))
    assert len(flat) == len(set(flat)) == 48
    three = loader(0, 3, batch_size=1, step=2)
    with pytest.raises(OptionError, match=r"8 samples .* no whole steps of 6"):
        three.load_state_dict(one.state_dict())


def test_a_stage_without_data_counts_along():
    idle, reading = loader(reads=False), loader()
    assert list(itertools.islice(idle, 4)) == [None] * 4
    list(itertools.islice(reading, 4))
    assert idle.state_dict() == reading.state_dict()
    assert len(list(idle)) == len(idle) - 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 26}, r"50 samples; one step takes 52"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"sampler": [1]}, "sampler: both ends"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        loader(**options)


def test_a_stream_is_refused():
    with pytest.raises(OptionError, match=r"generator.* has no __len__"):
        PipelineLoader((i for i in range(3)), place=Place(), batch_size=1)


def test_another_order_cannot_be_resumed():
    with pytest.raises(OptionError, match=r"'seed': 3.*'seed': 0"):
        loader().load_state_dict(loader(seed=3).state_dict())
