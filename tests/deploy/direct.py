"""Nodes in this process: a transport without Flower whose nodes can be made to fail."""

import json

from fedgap.config import Experiment
from fedgap.deploy.enrol import first_clients
from fedgap.deploy.node import Node
from fedgap.deploy.node_data import LocalNodeData, NodeSettings
from fedgap.deploy.packet import Packet
from fedgap.deploy.session import Session
from fedgap.deploy.transport import Answer, Patience, Quorum

FIRST = 100  # node ids are not client numbers


class Fleet:
    """A transport. ``spoil[client]`` is called with (request, answer) and returns what is sent: bytes, or None."""

    def __init__(self, experiment, count, folder):
        self.experiment, self.folder = experiment, folder
        experiment.save(folder / "experiment.yaml")
        self.nodes = {FIRST + n: self.fresh(n) for n in range(count)}
        self.offline, self.spoil, self.errors = set(), {}, {}
        self.box, self.requests = {}, []

    def fresh(self, client):
        file = self.folder / f"node-{client}.json"
        file.write_text(json.dumps({"experiment": "experiment.yaml", "client": client}))
        return Node(LocalNodeData(NodeSettings.load(file)))

    def restart_after(self, client, round):
        """The client's node is restarted once it has answered this round: its copy of the model is gone."""
        def restart(request, answer):
            if request.fields.get("round") == round:
                self.nodes[FIRST + client] = self.fresh(client)
            return answer.to_bytes()

        self.spoil[client] = restart

    def online(self):
        return set(self.nodes) - self.offline

    def send(self, packets, ttl_s):
        tickets = {}
        for node, packet in packets.items():
            ticket = tickets[node] = f"{len(self.requests)}"
            client = node - FIRST
            request = Packet.from_bytes(packet.to_bytes(), 2**30)
            self.requests.append((client, request))
            if node in self.offline:
                continue
            if client in self.errors and request.fields["kind"] == "round":
                self.box[ticket] = Answer(ticket, error=self.errors[client])
                continue
            answer = self.nodes[node].answer(request)
            data = self.spoil.get(client, lambda request, answer: answer.to_bytes())(request, answer)
            if data is not None:
                self.box[ticket] = Answer(ticket, data)
        return tickets

    def collect(self, tickets):
        return [self.box.pop(ticket) for ticket in tickets if ticket in self.box]

    def session(self, out="run", **options):
        experiment = Experiment.load(self.folder / "experiment.yaml")
        patience = Patience(round_s=options.pop("round_s", 0.5), enrol_s=options.pop("enrol_s", 20.0),
                            poll_s=options.pop("poll_s", 0.001), quorum=options.pop("quorum", Quorum()))
        return Session(self.folder / out, experiment, self, nodes=len(self.nodes), patience=patience, **options)


def make_fleet(folder, count=3, *overrides, preset="embedded"):
    """The nodes of a small experiment."""
    keys = ["rounds=6", "model.name=mlp", "data.train_samples=600", "data.test_samples=200", "engine.threads=1",
            "engine.kind=loop", "evaluate_every=3", "budget.energy_j=30", "budget.delay_s=15", *overrides]
    return Fleet(first_clients(Experiment.load(preset, keys), count), count, folder)


def news(run):
    return [(event["round"], item.get("client"), item["what"]) for event in run.history
            for item in event.get("news", [])]
