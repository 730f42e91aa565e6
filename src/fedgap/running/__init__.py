"""Runs: the loop over rounds, its ledger, checkpoints and faults, and sweeps over many runs.

:func:`fedgap.train` and :func:`fedgap.resume` are the entry points. The modules that execute a prepared run (``run``,
``loop``, ``job``, ``ledger``, ``checkpoint``, ``events``, ``faults``) need only torch, numpy, safetensors, PyYAML and
rich.
"""
