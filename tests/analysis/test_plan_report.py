"""A plan in words: the summary that ``print`` shows, and the report of ``fedgap plan``."""

from dataclasses import replace

import fedgap
from fedgap.analysis import plan_report


def test_the_summary(plan):
    lines = str(plan).splitlines()
    assert lines[0] == "proposed: feasible, 4 rounds, θ = 73"
    assert "3 rounds of 2 clients, 1 round of 1 client; 3.8125 J and 10 s in all." in lines
    assert lines[-1] == "There is no certificate: better plans may exist."
    assert "θ by terms" in plan._repr_html_()


def test_the_summary_of_an_infeasible_plan(plan):
    nothing = replace(plan, status="infeasible", rounds=0, segments=(), theta=float("inf"), reason="no time")
    assert str(nothing).splitlines() == ["proposed: infeasible, 0 rounds, θ = ∞", "", "no time"]


def test_a_certificate_says_how_far_it_reaches(plan):
    proven = replace(plan, lower_bound=72.28)  # (73 − 72.28)/(73 − 1) = 1 %
    assert proven.certificate == ("Certified: no plan of 4 rounds has θ below 72.28, so this one is within 1 % of the "
                                  "best cost θ − α.")
    assert "by all_clients with one selection in all rounds has" in replace(
        proven, scheme="all_clients", bound_scope="single").certificate


def test_theta_beside_local_steps_says_that_it_does_not_cover_them(scenario, plan):
    local = replace(plan, segments=tuple(replace(segment, local_steps=4) for segment in plan.segments))
    words = "it does not cover the 4 local steps"
    for shown in (local, plan_report(scenario, local), fedgap.bound(scenario, local)):
        assert words in " ".join(str(shown).split())
    for shown in (plan, plan_report(scenario, plan), fedgap.bound(scenario, plan)):
        assert "local steps" not in str(shown)
    assert "3 of 4 rounds, 4 local steps: 2 of 2 clients" in str(plan_report(scenario, local))
    scenario = scenario.with_overrides(["learning.local_steps=4"])
    assert words in " ".join(str(fedgap.bound(scenario)).split())


def test_the_report(scenario, plan):
    text = str(plan_report(scenario, replace(plan, prices={"energy": -0.25, "delay": 0.0})))
    assert "3 of 4 rounds: 2 of 2 clients, 2.50 s and 987 mJ per round" in text
    assert "far       75 %  50.0 %  500 mW  5.00 MHz  1000+1000+250 ms  138 mJ  power cap, most pruned, energy" in text
    assert "not selected" in text
    assert "energy  3.8125 J  3.8125 J  100 %  a joule more lowers θ by 0.25" in text
    assert "delay       10 s      12 s   83 %  a second more would not lower θ" in text


def test_the_picture_has_a_line_per_client_and_its_means_over_its_rounds(scenario, plan, tmp_path):
    figure = plan_report(scenario, plan).plot(tmp_path / "plan.png")
    take_part, pruned = figure.axes[:2]
    assert [label.get_text() for label in take_part.get_yticklabels()] == scenario.names
    # 3 rounds of both clients and 1 round of one: 100 % and 75 %, in the clients' order.
    shares = [bar.get_width() for bar in take_part.patches]
    rounds = sum(segment.rounds * segment.selected for segment in plan.segments)
    assert shares == [100.0 * n / 4 for n in rounds]
    first = plan.segments[0]
    mean = sum(s.rounds * s.pruning_ratio[0] * s.selected[0] for s in plan.segments) / rounds[0]
    assert first.selected[0]
    assert abs(pruned.patches[0].get_width() - 100.0 * mean) < 1e-9
    assert (tmp_path / "plan.png").stat().st_size > 1000
