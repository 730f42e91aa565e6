"""Drop-outs and stragglers: who is left out, what each is charged, how long the round takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.running.faults import Faults, Work, attend


def work() -> Work:
    """Three selected clients and one who is not; the second is the slowest as planned (4 + 2 + 1 s)."""
    selected = np.array([True, True, True, False])
    return Work(selected, compute_s=np.array([2.0, 4.0, 1.0, 0.0]), upload_s=np.array([1.0, 2.0, 4.0, 0.0]),
                download_s=np.array([1.0, 1.0, 1.0, 0.0]), compute_j=np.array([10.0, 20.0, 30.0, 0.0]),
                upload_j=np.array([1.0, 2.0, 4.0, 0.0]))


def test_without_faults_everybody_arrives_and_pays_the_plan():
    went = attend(work(), Faults(), 0, 0)
    assert went.arrived.tolist() == [True, True, True, False]
    assert went.delay_s == 7.0
    assert (went.compute_j + went.upload_j).tolist() == [11.0, 22.0, 34.0, 0.0]


def test_stragglers_past_the_deadline_are_charged_until_it_and_left_out():
    """Slowed twice: the first needs 4 + 1 + 1 = 6 <= 7 s and arrives. The second would compute until 8 s; it stops at
    6 s (deadline 7 less download 1) with 6/8 of its computing done. The third needs 2 + 4 + 1 = 7 s and just makes
    it."""
    went = attend(work(), Faults(straggler_probability=1.0, straggler_slowdown=2.0), 0, 0)
    assert went.arrived.tolist() == [True, False, True, False]
    assert went.late.tolist() == [False, True, False, False]
    assert went.compute_j.tolist() == [10.0, 15.0, 30.0, 0.0]
    assert went.upload_j.tolist() == [1.0, 0.0, 4.0, 0.0]
    assert went.client_s.tolist() == [6.0, 7.0, 7.0, 0.0]
    assert went.delay_s == 7.0


def test_a_late_upload_is_charged_in_part():
    """Slowed 3 times: the third computes 3 s of its 3, then uploads 3 of 4 s before the server closes at 6 s."""
    went = attend(work(), Faults(straggler_probability=1.0, straggler_slowdown=3.0), 0, 0)
    assert went.late.tolist() == [True, True, True, False]
    assert went.compute_j.tolist() == [10.0, 10.0, 30.0, 0.0]
    assert went.upload_j.tolist() == [0.0, 0.0, 3.0, 0.0]


@given(st.integers(0, 10**6), st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1), st.floats(1, 5))
def test_nobody_is_charged_more_than_planned_and_everybody_is_accounted_for(seed, number, dropout, straggle, slowdown):
    plan, faults = work(), Faults(dropout, straggle, slowdown)
    went = attend(plan, faults, seed, number)
    assert np.array_equal(went.arrived | went.dropped | went.late, plan.selected)
    assert not (went.arrived & went.dropped).any()
    assert not (went.arrived & went.late).any()
    assert (went.compute_j <= plan.compute_j).all()
    assert (went.upload_j <= plan.upload_j).all()
    assert (went.compute_j[went.arrived] == plan.compute_j[went.arrived]).all()
    assert went.delay_s <= 7.0 + 1e-12
    assert went.delay_s == 7.0 or went.arrived.sum() == 3
    again = attend(plan, faults, seed, number)
    assert again.arrived.tolist() == went.arrived.tolist()
    assert again.compute_j.tolist() == went.compute_j.tolist()


def test_a_clients_faults_do_not_depend_on_who_else_is_selected():
    faults, whole = Faults(dropout_probability=0.5), work()
    alone = Work(np.array([False, True, False, False]), *(np.where([0, 1, 0, 0], v, 0.0) for v in (
        whole.compute_s, whole.upload_s, whole.download_s, whole.compute_j, whole.upload_j)))
    for number in range(20):
        assert attend(whole, faults, 5, number).dropped[1] == attend(alone, faults, 5, number).dropped[1]


def test_dropouts_come_as_often_as_said_and_spend_half_on_average():
    faults = Faults(dropout_probability=0.3)
    rounds = [attend(work(), faults, 1, number) for number in range(4000)]
    dropped = np.array([went.dropped[:3] for went in rounds])
    assert dropped.mean() == pytest.approx(0.3, abs=0.015)
    spent = np.array([went.client_s[0] for went in rounds if went.dropped[0]])  # uniform over its 3 s of work
    assert spent.mean() == pytest.approx(1.5, abs=0.08)
