from __future__ import annotations

import dataclasses

import numpy as np

from partitioner.solve.cores import below_each, cored
from partitioner.solve.groups import condensed
from tests.solve.toys import chain


def test_a_dear_output_moves_the_work_of_its_unit_to_its_reader():
    groups = condensed(chain((2.0, 1.0, 4.0, 2.0), hops=[0.5, 3.0, 0.5]))
    found = cored(groups, 0.0, below_each(groups))
    assert found.coarse.members == ((0,), (1, 2), (3,))
    assert found.core_of == (0, 2, 3)
    assert found.work_s.tolist() == [2.0, 0.0, 5.0, 2.0]
    assert found.parted_s == 2.5


def test_what_is_not_spared_stays_where_the_satellite_is():
    groups = condensed(chain((2.0, 1.0, 4.0, 2.0), hops=[0.5, 0.75, 0.5]))
    kept = cored(groups, 0.5, below_each(groups))
    assert len(kept.coarse) == 4
    found = cored(groups, 0.8, below_each(groups))
    assert found.coarse.members == ((0,), (1, 2), (3,))
    assert found.work_s.tolist() == [2.0, 0.75, 4.25, 2.0]
    held = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=bool)
    sure_s, open_s = found.spent_s(held, even_s=3.0)
    assert sure_s.tolist() == [0.0, 2.0, 7.0, 9.0]
    assert open_s.tolist() == [0.0, 0.75, 0.0, 0.0]


def test_an_input_that_crosses_anyway_costs_nothing():
    plain = chain((9.0, 1.0, 4.0, 2.0), hops=[3.0, 3.5, 0.5])
    alone = condensed(plain)
    assert len(cored(alone, 0.0, below_each(alone)).coarse) == 4
    first = dataclasses.replace(plain.values[0], consumers=(1, 3))
    shared = dataclasses.replace(plain, values=(first, *plain.values[1:]))
    groups = condensed(shared)
    assert (1, 2) in cored(groups, 0.0, below_each(groups)).coarse.members


def test_groups_that_must_come_after_are_bits():
    groups = condensed(chain((1.0, 1.0, 1.0)))
    assert below_each(groups) == [0b111, 0b110, 0b100]
