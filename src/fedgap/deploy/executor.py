"""A SuperExec whose processes start fast: ``python -m fedgap.deploy.executor ADDRESS SECRET_FILE PARENT_PID``.

Its processes run only the app of the installed fedgap; code that a SuperLink sends with a run is not used."""

from __future__ import annotations

import sys
from pathlib import Path

from fedgap.deploy.client_app import app  # imported once, here, and not in every child
from fedgap.deploy.flower_patches import run_only, serve_by_forking

if __name__ == "__main__":
    run_only(app)
    serve_by_forking(sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3]))
