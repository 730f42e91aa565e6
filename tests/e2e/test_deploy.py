"""Deployment on real processes with TLS and node keys: a smoke test, and with FEDGAP_FULL=1 every promised fault."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedgap.config import Experiment, Scenario
from fedgap.config.trace_csv import read_trace
from fedgap.deploy.child_processes import Process, environment, flwr, free_port, listening, wait_until
from fedgap.deploy.enrol import first_clients
from fedgap.deploy.flower_processes import LOCK, NodeProcesses, write_app
from fedgap.deploy.keys import make_node_key, private_folder
from fedgap.deploy.worker_socket import SOCKET
from fedgap.learning.data import load
from fedgap.running.run import Run
from fedgap.running.train_and_resume import train
from tests.e2e.deployments import QUICK, at, deployed, kill, news, said, server_pid, wait_for

REFUSED = "The SuperNode could not establish a connection to the SuperLink."
RECEIVED, ADMITTED = "Received successfully", "SuperNode ID:"
full = pytest.mark.skipif(os.environ.get("FEDGAP_FULL") != "1", reason="takes a minute; set FEDGAP_FULL=1")


def closeness(ours: Path, theirs: Path) -> float:
    """max |a − b| / max |b| over the whole model."""
    ours, theirs = (torch.cat([t.flatten() for _, t in sorted(load_file(folder / "model.safetensors").items())])
                    for folder in (ours, theirs))
    return float((ours - theirs).abs().max() / theirs.abs().max())


def waited_for_once(told: list[str]) -> bool:
    """Whether a client that was lost or silent cost one deadline, and not one a round until it was heard of again."""
    waiting = True
    for what in told:
        if "no answer" in what or "was lost" in what:
            if not waiting:
                return False
            waiting = False
        elif what == "is back" or "after its deadline" in what:
            waiting = True
    return True


def test_the_command_line_trains_over_flower_as_the_simulator_does(tmp_path):
    """Smoke: `fedgap deploy up --local 2`, a whole run of a strong learner, no process left."""
    out = tmp_path / "run"
    overrides = ["rounds=3", "model.name=mlp", "data.train_samples=600", "data.test_samples=200", "engine.threads=1",
                 "engine.kind=loop", "budget.energy_j=100", "budget.delay_s=100", "evaluate_every=2",
                 "learning.local_steps=2", "learning.server.optimiser=adam", "learning.batches=target",
                 "learning.upload_bits=8"]
    done = subprocess.run([sys.executable, "-m", "fedgap", "deploy", "up", "embedded", *overrides, "--local", "2",
                           "--out", str(out), "--json"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 3
    run = Run(out)
    simulated = train(Experiment.load(out / "config.yaml"), tmp_path / "simulated")
    assert closeness(out, simulated.folder) < 1e-5
    assert [e["clients"] for e in run.history] == [e["clients"] for e in simulated.history]
    assert all(e["measured_s"] > 0 and e["uploaded_bytes"] > 0 for e in run.history)
    left = sorted(path.name for path in (out / "deployment").iterdir())
    assert left == ["command.txt", "experiment.yaml", "logs"]  # and no key
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(out) not in listed


@full
def test_twenty_rounds_of_lenet_on_four_nodes_are_the_simulators(tmp_path):
    from tests.deploy.test_session import masks_of

    out = tmp_path / "run"
    with deployed(out, 4, "rounds=20", "model.name=lenet5", "scheme=proposed", "data.train_samples=4000",
                  "data.test_samples=1000", "budget.energy_j=3", "budget.delay_s=7.5") as deployment:
        run = deployment.run()
    simulated = train(Experiment.load(out / "config.yaml"), tmp_path / "simulated")
    assert [e["clients"] for e in run.history] == [e["clients"] for e in simulated.history]
    assert [e["masks"] for e in run.history] == masks_of(simulated.folder)
    assert any(ratio > 0.1 for e in run.history for ratio in e["pruning_ratio"])
    assert closeness(out, simulated.folder) < 1e-5
    assert [e["energy_total_j"] for e in run.history] == [e["energy_total_j"] for e in simulated.history]


@full
def test_a_node_killed_amid_a_round_is_missed_once_and_comes_back(tmp_path):
    out = tmp_path / "run"
    with deployed(out, 3, "rounds=24", round_s=60.0) as deployment:
        victim, other = deployment.nodes[1], deployment.nodes[0].processes[0].pid
        log, known, cuts = victim.folder / "supernode.log", [], []

        def power_cut():
            os.kill(victim.processes[0].pid, signal.SIGSTOP)  # its next round begins and does not end
            seen = said(log, RECEIVED)
            cuts.append(threading.Thread(target=lambda: (wait_for(lambda: said(log, RECEIVED) > seen), victim.kill())))
            cuts[0].start()

        def again():
            cuts[0].join()
            known.append(said(log, ADMITTED))
            victim.start()

        def meanwhile():
            """The SuperLink believes a killed node alive for a minute: rounds wait, in another node, until it is in."""
            if known and said(log, ADMITTED) == known[0]:
                os.kill(other, signal.SIGSTOP)
                wait_for(lambda: [victim.revive(), said(log, ADMITTED)][1] > known[0], 15.0)
                os.kill(other, signal.SIGCONT)

        run = deployment.run(at({2: power_cut, 5: again}, always=meanwhile))
    assert len(run.history) == 24
    told = [what for _, client, what in news(run) if client == 1]
    assert any("no answer" in what or "was lost" in what for what in told), told
    assert waited_for_once(told), told
    assert "is back" in told, told
    assert "late" not in run.history[-1]
    assert "dropped" not in run.history[-1]


@full
def test_a_policy_plans_around_a_node_that_was_killed_and_its_world_is_recorded(tmp_path):
    out = tmp_path / "run"
    with deployed(out, 3, "rounds=8", "policy=replan", "scheme=forecast", "mode=practical", "learning.local_steps=2",
                  "budget.energy_j=9", "budget.delay_s=7.5", round_s=20.0) as deployment:
        run = deployment.run(at({3: deployment.nodes[1].kill}))
    events, names = run.history, run.job.names
    gone = next(event["round"] for event in events if 1 not in event["available"])
    assert 3 <= gone <= 5
    assert "client 1 left" in events[gone]["planned_again"]
    assert all(1 not in event["clients"] for event in events[gone:])
    assert sum(1 in event.get("late", []) + event.get("dropped", []) for event in events) == 1
    assert run.summary["energy_j"] <= 9.0 * (1 + 1e-6)
    assert run.summary["delay_s"] <= 7.5 * (1 + 1e-6)
    trace = read_trace("trace.csv", out, names)
    assert [trace.available[event["row"], 1] for event in events] == [1 in event["available"] for event in events]
    again = Experiment.load(out / "config.yaml", [f"scenario.world.trace={out / 'trace.csv'}"])
    simulated = train(again, tmp_path / "simulated")
    assert [event["available"] for event in simulated.history][:gone] == [event["available"] for event in events][:gone]


@full
def test_a_node_that_hangs_past_the_deadline_is_left_out_and_taken_back(tmp_path):
    out = tmp_path / "run"
    with deployed(out, 3, "rounds=14", round_s=40.0) as deployment:
        worker = deployment.nodes[2].processes[0].pid
        run = deployment.run(at({2: lambda: os.kill(worker, signal.SIGSTOP),
                                 5: lambda: os.kill(worker, signal.SIGCONT)}))
    assert len(run.history) == 14
    told = [what for _, client, what in news(run) if client == 2]
    assert any("no answer within 40 s" in what or "was lost" in what for what in told), told
    assert any(what == "is back" or "after its deadline" in what for what in told), told
    assert all("late" not in e and "dropped" not in e for e in run.history[-1:])
    assert waited_for_once(told), told


@full
@pytest.mark.parametrize("away_s", [60.0, 600.0])
def test_all_nodes_stopped_and_continued_end_with_the_very_same_model(tmp_path, away_s):
    """Everything of every node stands still; the in-process version is in tests/deploy/test_quorum.py."""
    with deployed(tmp_path / "whole", 2, "rounds=5", quorum="1.0") as deployment:
        whole = deployment.run()
    out, said = tmp_path / "run", []
    with deployed(out, 2, "rounds=5", round_s=15.0, quorum="1.0") as deployment:
        pids = [process.pid for node in deployment.nodes for process in node.processes]

        def stop():
            for pid in pids:
                os.killpg(pid, signal.SIGSTOP)
            threading.Timer(away_s, go_on).start()

        def go_on():
            for pid in pids:
                os.killpg(pid, signal.SIGCONT)

        run = deployment.run(at({2: stop}), on_wait=said.append)
    assert [event["round"] for event in run.history] == list(range(5))
    assert all(None not in event["client_norm"] for event in run.history)
    assert closeness(out, whole.folder) == 0.0
    assert len(said) == 1
    assert "waits: 0 of 2 needed clients are there" in said[0]
    assert sum(len(event.get("uncounted", [])) for event in run.history) <= 2


@full
def test_a_model_that_the_nodes_cannot_import_ends_the_command_with_an_error(tmp_path):
    """The module is on the server; on the nodes it lacks something."""
    (tmp_path / "here_only.py").write_text(
        "import sys\n__fedgap__ = ['Net']\n"
        "if 'node_worker' in sys.argv[0]:\n    raise ImportError('not on this machine')\n"
        "from fedgap.learning.models.mlp import MLP as Net\n")
    done = subprocess.run([sys.executable, "-m", "fedgap", "deploy", "up", "embedded", *QUICK, "rounds=3",
                           "model.name=here_only:Net", "--local", "2", "--out", str(tmp_path / "run")],
                          capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert "answers were refused in each of 3 attempts" in done.stderr
    assert "cannot be imported" in done.stderr
    assert not (tmp_path / "run" / "summary.json").exists()


@full
def test_a_superlink_that_is_killed_is_started_again_and_no_round_is_lost(tmp_path):
    out = tmp_path / "run"
    with deployed(out, 2, "rounds=6", round_s=30.0) as deployment:
        before = []

        def cut():
            before.extend(Run(out).history)
            deployment.superlink.process.kill()

        run = deployment.run(at({3: cut}))
    assert [e["round"] for e in run.history] == list(range(6))
    assert run.history[:len(before)] == before
    assert any("resumed from its checkpoint" in what for _, _, what in news(run))


@full
def test_a_server_app_that_is_killed_goes_on_from_its_checkpoint(tmp_path):
    out = tmp_path / "run"
    with deployed(out, 2, "rounds=6", round_s=30.0) as deployment:
        run = deployment.run(at({3: lambda: kill(server_pid(out))}))
    assert [e["round"] for e in run.history] == list(range(6))
    assert any("resumed from its checkpoint" in what for _, _, what in news(run))
    simulated = train(Experiment.load(out / "config.yaml"), tmp_path / "simulated")
    assert closeness(out, simulated.folder) < 1e-5


@full
def test_a_command_that_was_ended_is_named_by_resume_and_goes_on(tmp_path):
    """`deploy up` is killed after two rounds, interrupted after four, and each time the same command resumes."""
    out, environ = tmp_path / "run", {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["fedgap", "deploy", "up", "embedded", *QUICK, "rounds=6", "--local", "2", "--out", str(out)]

    def resumed():
        done = subprocess.run(["fedgap", "resume", str(out)], capture_output=True, text=True, env=environ, check=False)
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("\n") == 1
        return shlex.split(done.stderr.partition("continue with: ")[2])

    for rounds, number, code in ((2, signal.SIGKILL, -9), (4, signal.SIGINT, 130)):
        with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                if line.startswith(f"round {rounds}/"):
                    process.send_signal(number)
                    break
            process.stderr.read()
        assert process.returncode == code
        assert not Run(out).finished
        assert wait_for(lambda: str(out / "deployment") not in subprocess.run(
            ["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout, 60.0), "processes are left"
        server = int((out / LOCK).read_text())
        assert wait_for(lambda server=server: not Path(f"/proc/{server}").exists(), 60.0), "the server app is left"
        assert resumed() == command
    subprocess.run(resumed(), env=environ, check=True, timeout=600)
    run = Run(out)
    assert [e["round"] for e in run.history] == list(range(6))
    assert sum("resumed from its checkpoint" in what for _, _, what in news(run)) == 2
    assert closeness(out, train(Experiment.load(out / "config.yaml"), tmp_path / "simulated").folder) < 1e-5


@contextmanager
def lying(node, *profile):
    """The node's worker is replaced by one that lies."""
    node.processes[0].kill()
    (node.folder / SOCKET).unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-m", "tests.e2e.lying_worker", str(node.folder), *profile],
                               cwd=Path(__file__).parents[2])
    try:
        assert wait_for((node.folder / SOCKET).exists)  # or the client app would start an honest worker
        yield
    finally:
        process.kill()
        process.wait()


@full
def test_profiles_that_are_absurd_cost_their_senders_only(tmp_path):
    """Before, each of them ended the run, two of them after six restarts."""
    with deployed(tmp_path / "run", 4, "rounds=2") as deployment, lying(deployment.nodes[1], "many samples"), \
            lying(deployment.nodes[2], "five classes"), lying(deployment.nodes[3], "negative gain"):
        run = deployment.run()
    assert len(run.history) == 2
    assert run.job.names == ("client 0",)
    refused = [what for _, _, what in news(run) if "was refused" in what]
    for reason in ("label_counts: must add up to", "label_counts: has 5 classes", "uplink_gain"):
        assert any(reason in what for what in refused), (reason, refused)


@full
def test_answers_that_are_garbage_are_refused_and_named(tmp_path):
    """Client 1's worker lies: a wrong shape, NaN, a wrong round, another plan, too many bytes, no packet at all,
    an infinite length, a loss of 10**400, and so many bytes that the SuperLink does not take them: an answer that was
    announced and never comes."""
    out = tmp_path / "run"
    with deployed(out, 3, "rounds=10", round_s=30.0) as deployment, lying(deployment.nodes[1]):
        run = deployment.run()
    assert len(run.history) == 10
    assert [e.get("rejected") for e in run.history] == [None, *[[1]] * 8, None]
    assert [1] in (run.history[9].get("dropped"), run.history[9].get("late"))
    assert run.history[9]["measured_s"] < 60  # its deadline of 30 s, not the hours that Flower would wait
    told = [what for _, client, what in news(run) if client == 1]
    for reason in ("17 parameters", "not finite", "round", "another plan", "at most", "not a packet", "byte strings",
                   "loss: must be a finite number"):
        assert any("answer refused" in what and reason in what for what in told), (reason, told)


@full
def test_strangers_and_plaintext_are_refused(tmp_path):
    out = tmp_path / "run"
    with deployed(out, 2, "rounds=4", round_s=30.0) as deployment:
        superlink = deployment.superlink
        folder = private_folder(tmp_path / "stranger")
        (folder / "node.yaml").write_text(f"experiment: {deployment.experiment}\nclient: 1\n")
        key, _ = make_node_key(private_folder(tmp_path / "own"), "stranger")
        address = f"127.0.0.1:{superlink.port}"
        strangers = [NodeProcesses(folder, superlink=address, ca=superlink.keys / "ca.crt", key=key),
                     NodeProcesses(private_folder(tmp_path / "keyless"), superlink=address,
                                   ca=superlink.keys / "ca.crt", key=None)]
        plain = Process("plaintext", [str(Path(sys.executable).parent / "flower-supernode"), "--insecure",
                                      "--superlink", address, "--port", str(free_port()), "--max-retries", "2"],
                        tmp_path / "plain.log", superlink.environ)
        try:
            for stranger in strangers:
                stranger.start()
            run = deployment.run()
            logs = [*(s.folder / "supernode.log" for s in strangers), plain.log]
            wait_for(lambda: all(said(log, REFUSED) for log in logs))
            texts = [log.read_text() for log in logs]
        finally:
            for stranger in strangers:
                stranger.stop()
            plain.stop()
    assert len(run.history) == 4
    assert not news(run)  # nobody else enrolled
    for words, why in zip(texts, ("Failed to activate", "must be registered", "Server disconnected"), strict=True):
        assert "SuperNode ID" not in words
        assert REFUSED in words
        assert why in words, words


@full
def test_server_and_nodes_with_data_of_their_own_by_their_own_commands(tmp_path):
    """`deploy keys`, `deploy server` and two `deploy node`, as across machines; the nodes' data are files of theirs."""
    data, port = load("embedded", train_samples=600, test_samples=200), free_port()
    command = [sys.executable, "-m", "fedgap", "deploy"]
    subprocess.run([*command, "keys", str(tmp_path / "keys"), "--host", "server.example", "--node", "a", "--node", "b"],
                   check=True)
    processes = []
    for n, name in enumerate("ab"):
        np.savez(tmp_path / f"{name}.npz", train_x=data.train_x[n::2].numpy(), train_y=data.train_y[n::2].numpy())
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\ndata: {name}.npz\nclasses: 10\nepsilon: 0.5\ndevice: {{uplink_gain: 8.0e-6, downlink_gain: "
            "8.0e-6, bandwidth_hz: 1.0e5, max_power_w: 0.5, max_frequency_hz: 5.0e8, flops_per_cycle: 4, pue: 1.0, "
            "capacitance: 8.8e-28}\n")
        processes.append(subprocess.Popen([
            *command, "node", str(tmp_path / f"{name}.yaml"), "--superlink", f"127.0.0.1:{port}",
            "--ca", str(tmp_path / "keys" / "ca.crt"), "--key", str(tmp_path / "keys" / name),
            "--folder", str(tmp_path / f"folder-{name}")]))
    try:
        done = subprocess.run([
            *command, "server", "embedded", "rounds=3", "model.name=mlp", "budget.energy_j=100", "budget.delay_s=100",
            "data.train_samples=600", "data.test_samples=200", "--nodes", "2", "--keys", str(tmp_path / "keys"),
            "--out", str(tmp_path / "run"), "--port", str(port), "--json"],  # it listens on all interfaces
            capture_output=True, text=True, timeout=600, check=False)
    finally:
        for process in processes:
            process.terminate()
        codes = [process.wait(60) for process in processes]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 3
    assert codes == [130, 130]
    assert [c["name"] for c in json.loads(done.stdout)["clients"]] == ["a", "b"]
    counts = [client.label_counts for client in Scenario.load(tmp_path / "run" / "scenario.yaml").clients]
    exact = [np.bincount(data.train_y[n::2], minlength=10) for n in (0, 1)]
    assert all(0 < np.abs(np.array(ours) - theirs).sum() < 100 for ours, theirs in zip(counts, exact, strict=True))


@full
def test_the_app_runs_on_flowers_simulation_too(tmp_path):
    """`flwr run` on virtual nodes (Ray), against a SuperLink in simulation mode."""
    environ, port = environment(private_folder(tmp_path / "home")), free_port()
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    keys = ["rounds=4", "model.name=mlp", "data.train_samples=600", "data.test_samples=200", "engine.threads=1",
            "engine.kind=loop", "budget.energy_j=100", "budget.delay_s=100"]
    first_clients(Experiment.load("embedded", keys), 3).save(tmp_path / "experiment.yaml")
    superlink = Process("the SuperLink", [
        str(Path(sys.executable).parent / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1",
        "--port", str(port)], tmp_path / "superlink.log", environ)
    run = Run(tmp_path / "run")
    try:
        wait_until(lambda: listening("127.0.0.1", port), 90.0, "no SuperLink", superlink)
        flwr(["run", str(write_app(tmp_path / "app")), "here", "--federation-config",
              "num-supernodes=3 client-resources-num-cpus=1", "--run-config",
              f"experiment='{tmp_path / 'experiment.yaml'}' folder='{run.folder}' nodes=3"], environ)
        wait_until(lambda: run.finished, 600.0, "the run did not end", superlink)
        wait_for(lambda: flwr(["list", "here"], environ)["runs"][0]["status"] == "finished:completed")
    finally:
        superlink.stop()
    simulated = train(Experiment.load(run.folder / "config.yaml"), tmp_path / "simulated")
    assert closeness(run.folder, simulated.folder) < 1e-5
    assert [e["clients"] for e in run.history] == [e["clients"] for e in simulated.history]
