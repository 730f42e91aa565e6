"""Noise on label histograms: Laplace of scale 1/ε, the same whenever asked, and what it does to planning."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.supercore.task_identity import TaskIdentity

from fedgap.config import Experiment
from fedgap.deploy.client_app import PACKET, RECORD
from fedgap.deploy.enrol import Profile, first_clients, plan_for
from fedgap.deploy.node_data import LocalNodeData, NodeSettings
from fedgap.deploy.privacy import noised_counts
from fedgap.running.prepare import divide


def test_the_noise_is_laplace_of_scale_one_over_epsilon():
    """Standard deviation √2/ε, mean 0, and a median of |noise| of ln 2/ε, within 5 standard errors."""
    epsilon, draws = 0.05, 20_000
    exact = np.full(10, 10**6)
    noise = np.concatenate([noised_counts(exact, epsilon, i.to_bytes(4, "big")) - exact for i in range(draws // 10)])
    assert abs(noise.mean()) < 5 * np.sqrt(2) / epsilon / np.sqrt(draws)
    assert noise.std() == pytest.approx(np.sqrt(2) / epsilon, rel=0.06)
    assert np.median(np.abs(noise)) == pytest.approx(np.log(2) / epsilon, rel=0.06)


def test_neighbours_are_hard_to_tell_apart():
    """P(output | data) ≤ e^ε·P(output | data with one sample more), for every output seen often, within sampling."""
    epsilon, draws = 1.0, 400_000
    outcomes = [noised_counts(np.full(draws, count), epsilon, bytes([count])) for count in (20, 21)]
    for value in range(15, 27):
        shares = [max((o == value).mean(), 1e-9) for o in outcomes]
        if min(shares) > 0.005:
            assert max(shares) / min(shares) < np.exp(epsilon) * 1.1


def test_counts_stay_counts_and_asking_again_tells_nothing_new():
    for secret in (b"a", b"b"):
        noised = noised_counts([0, 0, 3], 0.1, secret)
        assert (noised >= 0).all()
        assert noised.sum() >= 1
        assert (noised == noised_counts([0, 0, 3], 0.1, secret)).all()
    assert (noised_counts([50] * 10, 0.1, b"a") != noised_counts([50] * 10, 0.1, b"b")).any()


def test_two_reports_do_not_cancel_each_others_noise():
    """With one noise x for all, c + x/ε₁ and c + x/ε₂ give c, and two histograms' difference is exact."""
    counts = np.arange(1000, 1200)
    one, two, three = (noised_counts(c, e, b"s") - c for c, e in ((counts, 0.1), (counts, 0.05), (counts + 1, 0.1)))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.3
    assert abs(np.corrcoef(one, three)[0, 1]) < 0.3


def test_a_nodes_noise_survives_its_restart(tmp_path):
    (tmp_path / "node.yaml").write_text("experiment: embedded\nclient: 3\nepsilon: 0.5\n")
    first, second = (LocalNodeData(NodeSettings.load(tmp_path / "node.yaml")).profile() for _ in range(2))
    assert first == second
    assert "target_counts" not in first  # no exact histogram beside the noised one
    exact = LocalNodeData(NodeSettings.load(_plain(tmp_path))).profile()["label_counts"]
    assert first["label_counts"] != exact
    assert (tmp_path / "node.secret").stat().st_mode & 0o077 == 0


def _plain(folder):
    (folder / "plain.yaml").write_text("experiment: embedded\nclient: 3\n")
    return folder / "plain.yaml"


def test_planning_with_noise_approaches_planning_without():
    """As ε grows the noisy plan's θ goes to the exact one's; at ε = 100 hardly a count moves."""
    keys = ["rounds=6", "budget.energy_j=0.9", "budget.delay_s=2.6"]
    experiment = first_clients(Experiment.load("embedded", keys), 4)
    dataset, parts, scenario = divide(experiment)

    def theta(epsilon):
        profiles = []
        for n in range(4):
            counts = parts.label_counts[n]
            if epsilon is not None:
                counts = noised_counts(counts, epsilon, bytes([n]))
            device = scenario.clients[n].model_dump(exclude_none=True, exclude={"label_counts", "target_counts", "phi",
                                                                                "name"})
            profiles.append(Profile(f"client {n}", n, device, tuple(counts.tolist()),
                                    tuple(parts.target_counts[n].tolist()), epsilon))
        return plan_for(experiment, profiles, dataset).plan.theta

    exact = theta(None)
    errors = [abs(theta(epsilon) / exact - 1) for epsilon in (0.02, 100.0)]
    assert errors[1] < 1e-3
    assert errors[0] > errors[1]


@pytest.mark.parametrize("mod", [LocalDpMod(1.0, 1.0, 1.0, 1e-5), fixedclipping_mod])
def test_flowers_mods_refuse_these_messages_in_the_documents_words(mod, monkeypatch):
    """docs/explanation/privacy.md says so: the content is a ConfigRecord with the codec's bytes, no ArrayRecord."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)  # as in a process of Flower's
    message = Message(RecordDict({RECORD: ConfigRecord({PACKET: b"x"})}), dst_node_id=1, message_type="train")
    answer = mod(message, None, lambda message, context: pytest.fail("the app was reached"))
    assert answer.has_error()
    words = "expects exactly one ArrayRecord, but found 0"
    assert words in answer.error.reason
    assert words in (Path(__file__).parents[2] / "docs" / "explanation" / "privacy.md").read_text()
