"""Algorithm 1 of the paper: P1 by alternating resources (P2.1), pruning ratios (P3) and client selection (P5)."""

from fedgap.planning.alternating.algorithm import AlternatingOptions, AlternatingResult, solve

__all__ = ["AlternatingOptions", "AlternatingResult", "solve"]
