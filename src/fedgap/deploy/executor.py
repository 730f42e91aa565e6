"""A SuperExec whose processes start warm: ``python -m fedgap.deploy.executor ADDRESS SECRET_FILE PARENT_PID``.

They run the installed fedgap's app and no other: the code that a SuperLink sends along with a run stays unused.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedgap.deploy.client_app import app  # imported once, here, and not in every child
from fedgap.deploy.flower_patches import run_only, serve_by_forking

if __name__ == "__main__":
    run_only(app)
    serve_by_forking(sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3]))
