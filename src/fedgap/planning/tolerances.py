"""Tolerances and limits that several modules of planning share, each with its reason. Tolerances are relative.

A number that only one module uses is in that module. ``fedgap.planning`` explains the words.
"""

KEPT = 1e-12
"""Excess at which a deadline or a budget still counts as kept. It allows for rounding in some thousand operations."""
BUDGET_MARGIN = 1e-9
"""Excess at which a plan still counts as within its budgets, and the margin that is added to a least budget. It is far
above rounding errors and far below what can be measured."""
NO_GAIN = 1e-12
"""A search ends when a step improves the value by less than this, which may be a rounding error."""
PROGRAM_KEPT = 1e-9
"""Share of a budget by which the linear program may exceed it; HiGHS keeps constraints to about this precision."""
SUPPORT = 1e-9
"""A column of the linear program counts as used if it has at least this share of the rounds."""

OPTIMAL_GAP = 1e-3
"""A plan is called optimal if it is above its certified lower bound by at most this."""
FINE_GAP = 1e-9
"""The search ends when the gap between the best plan and its bound is below this."""
SOLVED = 1e-6
"""Precision to which a composition is solved. A lower bound that comes from a solved composition is reduced by this."""
POLISHED_GAP = 1e-7
"""Gap below which rounds are no longer moved between a composition's parts, because deadlines are not solved more
precisely (:data:`DEADLINES`)."""
COARSE_GAP = 1e-5
"""Gap between plan and bound above which further selections are tried, if there are too many rounds to enumerate."""
ROUGH_GAP = 1e-3
"""How far the best plan may be above the program's value before further selections are tried, if selections come from a
local search. Also the gap above which more effort is spent on the bound."""
LOST_GAP = 2e-3
"""How far the best plan may be above the program's value before further selections are tried, if selections come from a
search that proves bounds."""

DEADLINES = 1e-7
"""Gap to which the deadlines of several parts are found. The value is flat there, so that the plan is closer still."""
TANGENTS_MET = 1e-11
"""A round's deadline is good enough if its value is above the point where its tangents meet by at most this."""
LOCAL_SEARCH_MET = 1e-7
"""The same in a local search, whose rounds are solved more precisely afterwards."""

ENUMERATED_CLIENTS = 12
"""For at most this many clients all 2^N − 1 selections are priced one by one; 4,095 take a few milliseconds."""
ENUMERATED_ROUNDS = 6
"""For at most this many rounds compositions are enumerated. With more rounds there are too many, and rounding loses
little."""
CHEAPEST_PRICE = 1e-18
"""The least price of time that is considered, relative to the largest. At this price a second costs almost nothing."""
