"""Importance rules: which weights clients keep."""


class Steady:
    """Keeps weights that are large and that many rounds moved: magnitude times a running mean of the gradient."""

    def scores(self, weights, memory, *, round, seed):
        """One score per weight; the highest are kept. Before the first gradient is known, the magnitude decides."""
        return weights.abs() * memory["gradient"] if "gradient" in memory else weights.abs()

    def observe(self, memory, weights, gradient, known):
        """What is remembered after a round. ``known`` says for which weights some client sent a gradient."""
        before = memory.get("gradient", gradient.abs())
        return {"gradient": (0.9 * before + 0.1 * gradient.abs()).where(known, before)}


STEADY = Steady()
