"""Runs: the loop over rounds, its ledger, checkpoints and faults, and sweeps over many runs.

:func:`fedgap.train` and :func:`fedgap.resume` are the way in. What executes a prepared run (``run``, ``loop``, ``job``,
``ledger``, ``checkpoint``, ``events``, ``faults``) needs torch, numpy, safetensors, PyYAML and rich only.
"""
