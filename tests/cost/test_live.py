"""What is alive at once, and what has made room for it."""

from __future__ import annotations

import torch

from partitioner.cost.live import LiveBytes

KIB = 256
"""Numbers in float32."""


def test_the_most_that_was_alive_counts():
    with LiveBytes() as live:
        kept = torch.zeros(4 * KIB)
        freed = torch.zeros(2 * KIB)
        del freed
        torch.zeros(1 * KIB)
    assert live.peak_bytes == 6 * 1024
    assert kept.nbytes == 4 * 1024


def test_what_is_freed_after_a_restart_makes_room():
    live = LiveBytes()
    with live:
        first, second = torch.zeros(4 * KIB), torch.zeros(4 * KIB)
    live.restart()
    with live:
        added = torch.zeros(2 * KIB)
        del first
        more = torch.zeros(3 * KIB)
    assert live.peak_bytes == 2 * 1024  # then 2 + 3 - 4
    assert second.nbytes + added.nbytes + more.nbytes == 9 * 1024
