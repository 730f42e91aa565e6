"""Write the files of ``fedgap init DIR``: a commented scenario, its clients as a CSV, and an experiment that uses
it."""

from importlib import resources
from pathlib import Path

from fedgap.config.error_messages import shown
from fedgap.errors import InputError
from fedgap.files import write_text

FILES = ("scenario.yaml", "fleet.csv", "experiment.yaml")
"""The files in ``template/``."""


def write_template(directory: str | Path) -> list[Path]:
    """Write the files into ``directory``, which is created if needed, and return their paths.

    An existing file is never replaced.
    """
    folder = Path(directory)
    paths = [folder / name for name in FILES]
    try:
        for path in paths:
            if path.exists():
                raise InputError(f"{shown(path)}: exists already; choose another folder, or move the file")
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            template = resources.files("fedgap.config").joinpath("template", path.name)
            write_text(path, template.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(folder)}: cannot be written to ({getattr(error, 'strerror', error)})") from None
    return paths
