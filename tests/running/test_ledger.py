"""The ledger against numbers worked out here from the paper's formulas, and against planning's own totals."""

import math

import numpy as np
import pytest

from fedgap.learning.codec import HEADER_BYTES
from fedgap.planning.problem import Problem
from fedgap.running.ledger import Ledger
from fedgap.running.prepare import divide, prepare
from fedgap.running.train_and_resume import train
from tests.running.plans import by_hand


def paper_round(scenario, segment):
    """Joules and seconds of one round, straight from Section II, client by client."""
    joules, seconds, downloads = [], [], []
    for n, client in enumerate(scenario.clients):
        u0, H = scenario.noise_psd_w_hz, scenario.model.gradient_bits
        down = H / (scenario.server.bandwidth_hz * math.log2(
            1 + scenario.server.power_w * client.downlink_gain / (scenario.server.bandwidth_hz * u0)))
        downloads.append(down)
        if not segment.selected[n]:
            continue
        lam, p, f = segment.pruning_ratio[n], segment.power_w[n], segment.frequency_hz[n]
        flops = (1 - lam) * scenario.learning.batch_size * scenario.model.flops_per_sample
        up = (1 - lam) * H / (client.bandwidth_hz * math.log2(1 + p * client.uplink_gain / (client.bandwidth_hz * u0)))
        seconds.append(flops / (f * client.flops_per_cycle) + up + down)
        joules.append(client.pue * client.capacitance * f**2 * flops / client.flops_per_cycle + p * up)
    return sum(joules) + scenario.server.power_w * max(downloads), max(seconds)


def test_every_round_costs_what_the_paper_says_and_the_totals_are_plannings(small, tmp_path):
    experiment = small("rounds=7")
    _, _, scenario = divide(experiment)
    mixed = [0.1 * (n % 4) for n in range(10)]
    plan = by_hand(scenario, (1, range(10), 0.0), (4, [0, 2, 5], 0.25), (2, [1, 2, 9], mixed))
    run = train(experiment, tmp_path / "run", plan=plan)
    history = run.history
    assert [e["clients"] for e in history[:2]] == [list(range(10)), [0, 2, 5]]  # dense first, then interleaved
    for event in history:
        segment = next(s for s in plan.segments if np.flatnonzero(s.selected).tolist() == event["clients"])
        energy, delay = paper_round(scenario, segment)
        assert event["energy_j"] == pytest.approx(energy, rel=1e-12)
        assert event["delay_s"] == pytest.approx(delay, rel=1e-12)
        assert event["energy_j"] == pytest.approx(sum(event["client_energy_j"]) + event["broadcast_j"], rel=1e-12)
        assert event["delay_s"] == max(event["client_delay_s"])
        kept = sum(1 - r for r in event["pruning_ratio"])
        assert event["uploaded_bits"] == pytest.approx(kept * scenario.model.gradient_bits, rel=1e-12)
    problem, summary = Problem.of(scenario), run.summary
    assert summary["energy_j"] == pytest.approx(problem.energy(plan.segments), rel=1e-9)
    assert summary["delay_s"] == pytest.approx(problem.delay(plan.segments), rel=1e-9)
    assert summary["energy_j"] == history[-1]["energy_total_j"] == pytest.approx(sum(e["energy_j"] for e in history))
    by_client = sum(c["compute_j"] + c["upload_j"] for c in summary["clients"])
    assert by_client + summary["broadcast_j"] == pytest.approx(summary["energy_j"], rel=1e-12)
    assert summary["energy_left_j"] == pytest.approx(1e6 - summary["energy_j"])


def test_measured_accounting_charges_what_the_codec_made(small, tmp_path):
    runs = {}
    for accounting in ("as_printed", "measured"):
        experiment = small("rounds=5", f"pruning.accounting={accounting}")
        _, _, scenario = divide(experiment)
        runs[accounting] = train(experiment, tmp_path / accounting, plan=by_hand(
            scenario, (1, range(10), 0.0), (4, [0, 3], [0.1 * (n + 1) for n in range(10)])))
    printed, measured = runs["as_printed"], runs["measured"]
    size = measured.summary["weights"]
    for event in measured.history:
        uploads = [HEADER_BYTES + 4 * round((1 - ratio) * size) for ratio in event["pruning_ratio"]]
        assert event["uploaded_bits"] == 8 * sum(uploads)
    # an upload's joules and seconds are proportional to its bits; computing is the same
    last, reference = measured.history[-1], printed.history[-1]
    job = measured.job
    for i, n in enumerate(last["clients"]):
        bits = 8 * (HEADER_BYTES + 4 * round((1 - last["pruning_ratio"][i]) * size))
        as_printed = (1 - last["pruning_ratio"][i]) * scenario.model.gradient_bits
        compute = job.compute_j[1, n]
        expected = compute + (reference["client_energy_j"][i] - compute) * bits / as_printed
        assert last["client_energy_j"][i] == pytest.approx(expected, rel=1e-9)
    scale = 32 * size / scenario.model.gradient_bits
    assert last["broadcast_j"] == pytest.approx(reference["broadcast_j"] * scale, rel=1e-12)


def test_what_comes_through_the_codec_trains_the_same(small, tmp_path):
    """Without pruning: client by client sums round differently than fused, and a weight at the cut may change sides."""
    losses = []
    for accounting in ("as_printed", "measured"):
        experiment = small("rounds=5", f"pruning.accounting={accounting}")
        _, _, scenario = divide(experiment)
        run = train(experiment, tmp_path / accounting, plan=by_hand(scenario, (5, [0, 3, 4], 0.0)))
        losses.append([event["train_loss"] for event in run.history])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_what_a_client_spent_on_telling_its_loss_is_part_of_its_joules(small):
    """By which a battery is emptied."""
    experiment = small("rounds=1")
    _, _, scenario = divide(experiment)
    ledger = Ledger(prepare(experiment, by_hand(scenario, (1, range(10), 0.0))).job)
    joules = np.arange(10.0)
    ledger.book_probe(joules, joules)
    assert ledger.client_j.tolist() == joules.tolist()
    assert (ledger.energy_j, ledger.delay_s) == (45.0, 9.0)


def test_state_comes_back_exactly(small):
    experiment = small("rounds=2")
    _, _, scenario = divide(experiment)
    ready = prepare(experiment, by_hand(scenario, (2, [1], 0.0)))
    ledger = Ledger(ready.job)
    ledger.compute_j += np.random.default_rng(0).random(10)
    ledger.energy_j, ledger.late[3] = 0.1 + 0.2, 4
    again = Ledger(ready.job)
    again.load(ledger.state())
    assert again.state() == ledger.state()
    assert again.late.dtype == np.int64


@pytest.mark.parametrize(("budget", "which"), [("budget.energy_j", "energy"), ("budget.delay_s", "delay")])
def test_a_run_stops_before_the_round_that_would_overspend(small, tmp_path, budget, which):
    experiment = small("rounds=6")
    _, _, scenario = divide(experiment)
    energy, delay = paper_round(scenario, by_hand(scenario, (6, range(4), 0.1)).segments[0])
    limit = float(3.5 * (energy if which == "energy" else delay))
    tight = small("rounds=6", f"{budget}={limit!r}", "dense_first=false")
    _, _, scenario = divide(tight)
    run = train(tight, tmp_path / "run", plan=by_hand(scenario, (6, range(4), 0.1)))
    assert run.summary["ended"] == f"the {which} budget is spent"
    assert run.summary["rounds"] == len(run.history) == 3
    assert "test_accuracy" in run.history[-1]  # evaluated where it ends
