"""The bound in every reading, against numbers worked out by hand (see ``conftest``)."""

import math
from dataclasses import asdict

import pytest

import fedgap


def test_theta_by_terms(scenario, plan):
    """α = 2·0.2/(0.1·4), β = 0.001·4000·2/40, γ₁ = 0.1·4000/40, γ₂ = 8/4; Φ = 2 and 1, mean λ = 0.25 and 0."""
    reading = fedgap.bound(scenario, plan).reading()
    assert asdict(reading.terms) == pytest.approx(
        {"alpha": 1.0, "clients": 3 * 0.1 + 0.2, "generalization": 3 * 20 + 10, "pruning": 3 * 0.5})
    assert reading.terms.theta == pytest.approx(73.0)


def test_the_other_readings(scenario, plan):
    report = fedgap.bound(scenario, plan)
    assert len(report.readings) == 6
    corrected = report.reading(constants="corrected").terms  # 1/η² = 100 times larger in two terms
    assert (corrected.clients, corrected.generalization) == pytest.approx((50.0, 7000.0))
    assert report.reading(aggregation="sum").terms.generalization == pytest.approx(3 * 80 + 10)  # Φ = 4 and 1
    assert report.reading(aggregation="mixture").terms is None
    assert "mixture needs" in report.reading(aggregation="mixture").reason


def test_without_a_plan_everybody_prunes_to_the_most(scenario):
    report = fedgap.bound(scenario)
    assert report.plan == "all clients in all 4 rounds, pruned as much as allowed"
    assert report.reading().terms.pruning == pytest.approx(4 * 2 * 0.5)
    assert report.reading().terms.generalization == pytest.approx(4 * 20)


def test_the_statements_and_the_weight_of_pruning(scenario):
    report = fedgap.bound(scenario)
    assert [(row.name, row.given, row.used, row.samples) for row in report.statements] == [
        ("near", 1.0, 1.0, None), ("far", 3.0, 3.0, None)]
    assert (report.pruning_weight, report.theorem_weight, report.secant) == (8.0, 8.0, None)
    labelled = scenario.with_overrides(["target_counts=[8,8]", "clients[0].label_counts=[7,9]"])
    row = fedgap.bound(labelled).statements[0]
    p, q = (8 / 18, 10 / 18), (0.5, 0.5)


    assert row.samples == 16
    assert row.smoothed_zeros == 0
    assert row.rarest == pytest.approx(8 / 18)
    assert row.divergence == pytest.approx(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))


def test_it_prints(scenario, plan):
    text = str(fedgap.bound(scenario, plan))
    assert "The bound θ for the plan's 4 rounds" in text
    row = next(line for line in text.splitlines() if line.startswith("→ printed"))
    assert row.split() == ["→", "printed", "mean", "1.000", "0.500", "70.000", "1.500", "73.000", "generalization",
                           "96", "%"]
    assert "Pruning's weight γ₂·R is 8, the theorem's L²·B²." in text
