"""Copies each figure's definition and results from ``experiments/`` into the wheel.

``fedgap reproduce`` reads them from there. Everything else about the build is in ``pyproject.toml``. In an editable
installation nothing is copied: the package finds ``experiments/`` beside ``src/``.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithFigures(build_py):
    """Builds the package, then adds the figures."""

    def run(self) -> None:
        """Copy ``experiments/FIGURE/config.yaml`` and ``results.json`` to ``fedgap/evidence/figures/FIGURE/``."""
        super().run()
        if self.editable_mode:
            return
        definitions = {path.parent for path in Path("experiments").glob("*/config.yaml")}
        for folder in sorted(definitions | {Path("experiments/table1")}):
            target = Path(self.build_lib, "fedgap", "evidence", "figures", folder.name)
            self.mkpath(str(target))
            for path in (folder / "config.yaml", folder / "results.json"):
                if path.is_file():
                    self.copy_file(str(path), str(target / path.name))


setup(cmdclass={"build_py": BuildWithFigures})
