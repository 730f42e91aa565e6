"""Flower's SuperNode with shorter waits: ``python -m fedgap.deploy.supernode POLL_S [flower-supernode options]``.

The plain ``flower-supernode`` works as well, but its waiting times cause most of a round's overhead."""

from __future__ import annotations

import sys

from flwr.supernode.cli.flower_supernode import flower_supernode

from fedgap.deploy.flower_patches import shorten_waits

if __name__ == "__main__":
    shorten_waits(float(sys.argv.pop(1)))
    flower_supernode()
