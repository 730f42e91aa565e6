"""Find folders with runs, without importing torch."""

from pathlib import Path


def has_run(folder: Path) -> bool:
    """Whether the folder holds a run, finished or not."""
    return (folder / "job" / "job.json").is_file()
