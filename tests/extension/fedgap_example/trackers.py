"""Trackers: logs beside a run's own."""

import csv


class LossTable:
    """Writes ``losses.csv`` into the run's folder: one row per round, with the joules spent so far."""

    def __init__(self, run):
        """Begin with the rounds that were trained before, where the run is resumed."""
        self.file = open(run.folder / "losses.csv", "w", newline="", encoding="utf-8")  # noqa: SIM115
        self.table = csv.writer(self.file)
        self.table.writerow(["round", "energy_total_j", "train_loss"])
        self.log(run.history)

    def log(self, events):
        """Take new rounds; each has the keys of a line of ``rounds.jsonl``."""
        for event in events:
            self.table.writerow([event["round"], event["energy_total_j"], event["train_loss"]])
        self.file.flush()

    def close(self, summary):
        """Finish the log. ``summary`` is what the run came to, or None where it was interrupted."""
        self.file.close()
