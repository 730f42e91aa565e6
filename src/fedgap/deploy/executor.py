"""A SuperExec whose processes start warm: ``python -m fedgap.deploy.executor ADDRESS SECRET_FILE PARENT_PID``."""

from __future__ import annotations

import sys
from pathlib import Path

import fedgap.deploy.client_app  # noqa: F401  (imported once, here, and not in every child)
from fedgap.deploy.flower_patches import serve_by_forking

if __name__ == "__main__":
    serve_by_forking(sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3]))
