"""Deployment: the simulator's algorithm on real machines, over Flower.

``session`` is the server's side (``node_clients`` connects the nodes to the simulator's loop) and ``node`` the
client's; both work without Flower. ``server_app`` and ``client_app`` send their packets over Flower's SuperLink and
SuperNodes. ``local_deployment`` starts everything on this machine. ``flower_patches`` has all changes to Flower's
internals."""
