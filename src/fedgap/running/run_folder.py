"""Which folders hold runs. Whoever only looks at runs needs no torch for it."""

from pathlib import Path


def has_run(folder: Path) -> bool:
    """Whether the folder holds a run, finished or not."""
    return (folder / "job" / "job.json").is_file()
