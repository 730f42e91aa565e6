"""What a person writes down: scenarios, experiments, presets, overrides."""

from fedgap.config.scenario import Bound, Budget, Client, Learning, Model, Pruning, Scenario, Server

__all__ = ["Bound", "Budget", "Client", "Learning", "Model", "Pruning", "Scenario", "Server"]
