"""Deployment: the simulator's algorithm over Flower, on real machines.

``session`` is the server's side (``node_clients`` plug the nodes into the simulator's loop) and ``node`` a client's,
both without Flower; ``server_app`` and ``client_app`` carry their packets over Flower's SuperLink and SuperNodes;
``local_deployment`` starts all of it on this machine. ``flower_patches`` has every change to Flower's internals.
"""
