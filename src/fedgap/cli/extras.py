"""Optional extras: a command whose packages are not installed says in one line how to install them."""

from __future__ import annotations

from importlib.util import find_spec

from fedgap.errors import InputError

PACKAGES = {
    "train": ("torch", "safetensors"),
    "web": ("fastapi", "uvicorn", "plotly"),
    "deploy": ("torch", "safetensors", "flwr", "cryptography"),
    "ray": ("ray",),
}
"""For each extra, the packages that its commands need."""


def require(extra: str, command: str) -> None:
    """Raise an :class:`InputError` if a package of an extra is missing. Nothing is imported."""
    missing = [package for package in PACKAGES[extra] if find_spec(package) is None]
    if missing:
        raise InputError(f'{command}: needs {", ".join(missing)}; install with: pip install "fedgap[{extra}]"')
