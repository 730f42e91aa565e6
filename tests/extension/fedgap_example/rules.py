"""Rules: who takes part in each round. The planner gives each client its pruning ratio, power and clock."""

from fedgap.rules.rule import RoundRule, members


class LongestWaiting(RoundRule):
    """The k available clients that have waited longest."""

    def choose(self, now):
        waited_longest = sorted(now.available.nonzero()[0], key=lambda client: now.last_round[client])
        return members(self.facts.size, waited_longest[: self.wanted(now)])
