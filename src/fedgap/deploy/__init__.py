"""Deployment: the simulator's algorithm over Flower, on real machines.

``session`` is the server's side and ``node`` a client's, both without Flower; ``server_app`` and ``client_app`` carry
their packets over Flower's SuperLink and SuperNodes; ``local`` starts all of it on this machine.
"""
