"""Tolerances and limits that several steps of planning share, each with its reason. All are relative where not said.

A number that only one function uses is in that function's module.
"""

KEPT = 1e-12
"""Excess at which a deadline or a budget still counts as kept: the rounding of a few thousand float operations."""
BUDGET_MARGIN = 1e-9
"""Excess at which a plan still counts as within its budgets, and the margin that is added to a least budget: far above
rounding errors, far below what can be measured."""
NO_GAIN = 1e-12
"""A step that improves the value by less has converged: the difference is rounding."""
PROGRAM_KEPT = 1e-9
"""Share of the budgets by which the linear program may overdraw them: HiGHS keeps constraints to about this."""
SUPPORT = 1e-9
"""Share of the rounds from which on a column of the linear program counts as used."""

OPTIMAL_GAP = 1e-3
"""A plan within this share of the certified bound is called optimal: the contract's definition."""
FINE_GAP = 1e-9
"""Gap below which nothing is searched any further: plans are compared to this."""
SOLVED = 1e-6
"""Precision to which a composition is solved, which counts where a solved one bounds others."""
POLISHED_GAP = 1e-7
"""Gap below which rounds are no longer moved between a composition's segments: what several deadlines are solved to."""
COARSE_GAP = 1e-5
"""Gap above which other selections are tried where rounds are many."""
ROUGH_GAP = 1e-3
"""The same, above the program's value, where selections come from a local search; and a gap worth more proof."""
LOST_GAP = 2e-3
"""The same, above the program's value, where selections come from a search under a bound."""

DEADLINES = 1e-7
"""Gap to which several segments' deadlines are found; the value is flat there, so the plan is closer still."""
TANGENTS_MET = 1e-11
"""Distance of a round's value to its tangents' meeting point at which its deadline is good enough."""
LOCAL_SEARCH_MET = 1e-7
"""The same in a local search, whose rounds are solved for again afterwards."""

ENUMERATED_CLIENTS = 12
"""Up to here all 2^N − 1 selections are priced one by one: 4,095 take a few milliseconds."""
ENUMERATED_ROUNDS = 6
"""Up to here compositions are enumerated: above, rounding loses little and the compositions are too many."""
CHEAPEST_PRICE = 1e-18
"""The least price of time that is considered, relative to the largest: a second then costs almost nothing."""
