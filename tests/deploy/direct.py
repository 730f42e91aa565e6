"""Nodes in this process: a transport without Flower whose nodes can be made to fail."""

import json

from fedgap.config import Experiment
from fedgap.deploy.node import Node
from fedgap.deploy.node_data import LocalNodeData, NodeSettings
from fedgap.deploy.packet import Packet
from fedgap.deploy.session import Session
from fedgap.deploy.transport import Answer, Patience

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
        patience = Patience(round_s=options.pop("round_s", 0.5), enrol_s=options.pop("enrol_s", 0.5), poll_s=0.001)
        return Session(self.folder / out, experiment, self, nodes=len(self.nodes), patience=patience, **options)


def news(run):
    return [(event["round"], item.get("client"), item["what"]) for event in run.history
            for item in event.get("news", [])]
