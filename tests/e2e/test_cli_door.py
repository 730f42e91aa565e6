"""The door itself: exit codes, one line for an error, help, and what happens to a bug."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
import yaml

from fedgap import planning
from fedgap.cli.main import app
from tests.e2e.terminal import fedgap, fedgap_process
from tests.e2e.test_bad_input import GOOD, TEXTS, VALUES, changed

COMMANDS = ("init", "schema", "plan", "cost", "bound", "compare", "frontier", "budget", "partition", "calibrate",
            "train", "resume", "sweep", "predict", "export")


def one_line(answer, code):
    assert answer.code == code
    assert answer.err.startswith("fedgap: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    return answer.err.removeprefix("fedgap: ").rstrip("\n")


@pytest.mark.parametrize(("changes", "message"), VALUES, ids=range(len(VALUES)))
def test_a_bad_scenario_is_one_line(tmp_path, changes, message):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(changed(*changes), sort_keys=False))
    answer = fedgap("plan", path)
    assert one_line(answer, 2) == message
    assert answer.out == ""


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=range(len(TEXTS)))
def test_a_bad_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    assert one_line(fedgap("plan", path, "--json"), 2) == message.replace("FILE", str(path))


@pytest.mark.parametrize("command", ["plan", "bound", "compare", "frontier"])
def test_every_planning_command_takes_overrides(tmp_path, command):
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(GOOD))
    message = one_line(fedgap(command, path, "budget.delay_s=-1"), 2)
    assert message == ("budget.delay_s: must be above 0 s (without time no round can end); got -1 "
                       "(override 'budget.delay_s=-1')")


def test_wrong_usage_is_one_line_that_names_the_help():
    assert one_line(fedgap("plam"), 2).startswith("No such command 'plam'")
    assert one_line(fedgap("plam"), 2).count("Did you mean") <= 1
    assert one_line(fedgap("plan"), 2) == "Missing argument 'SCENARIO' (see fedgap plan --help)"
    assert "--sover" in one_line(fedgap("plan", "city", "--sover", "exact"), 2)
    assert "'exact', 'alternating'" in one_line(fedgap("plan", "city", "--solver", "magic"), 2)
    assert "--tie-break: can only be used with --solver alternating" in one_line(
        fedgap("plan", "paper-mnist", "--tie-break", "slack"), 2)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    answer = fedgap(command, "--help")
    assert answer.code == 0
    assert f"fedgap {command}" in answer.out
    assert answer.err == ""


def test_the_commands_are_those_of_the_contract():
    assert {command.callback.__name__ for command in app.registered_commands} >= set(COMMANDS)
    assert fedgap().out == fedgap("--help").out


def test_version():
    assert fedgap("--version").out == f"fedgap {version('fedgap')}\n"


def test_a_bug_is_one_line_unless_asked(monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("float\ndivision")

    monkeypatch.setattr(planning, "plan", broken)
    answer = fedgap("plan", "paper-mnist")
    assert one_line(answer, 1).startswith("internal error (ZeroDivisionError: float division); please report")
    monkeypatch.setenv("FEDGAP_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        fedgap("plan", "paper-mnist")


def test_ctrl_c_without_a_plan_is_130(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "plan", interrupted)
    assert one_line(fedgap("plan", "paper-mnist"), 130) == "interrupted"


def test_real_processes(tmp_path):
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(GOOD))
    good = fedgap_process("plan", path, "--json")
    assert (good.code, good.err) == (0, "")
    assert json.loads(good.out)["status"] == "optimal"
    assert one_line(fedgap_process("plan", path, "rounds=0"), 2).startswith("rounds: must be at least 1")
    bad = fedgap_process("plan", path, "budget.delay_s=1", "--json")
    assert one_line(bad, 3).startswith("budget.delay_s: ")
    assert json.loads(bad.out)["status"] == "infeasible"


def test_no_colour_codes_and_no_crash_in_a_pipe_of_few_characters(tmp_path):
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(GOOD))
    answer = fedgap_process("bound", path, PYTHONIOENCODING="ascii", FORCE_COLOR="")
    assert answer.code == 0
    assert "\x1b" not in answer.out


def test_a_reader_that_goes_away_is_not_an_error_to_shout_about():
    process = subprocess.Popen([sys.executable, "-m", "fedgap", "schema", "scenario"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(60)


WITHOUT = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
from fedgap.cli.main import run
sys.exit(run({arguments!r}))
"""


@pytest.mark.parametrize(("arguments", "absent", "message"), [
    (["train", "embedded", "--out", "DIR"], ["torch"], 'train: needs torch; install with: pip install "fedgap[train]"'),
    (["resume", "DIR"], ["torch"], 'resume: needs torch; install with: pip install "fedgap[train]"'),
    (["sweep", "embedded", "seed=0,1", "--out", "DIR"], ["torch", "safetensors"],
     'sweep: needs torch, safetensors; install with: pip install "fedgap[train]"'),
    (["calibrate", "embedded", "--out", "DIR/s.yaml"], ["torch"],
     'calibrate: needs torch; install with: pip install "fedgap[train]"'),
    (["partition", "embedded"], ["torch"], 'partition: needs torch; install with: pip install "fedgap[train]"'),
    (["reproduce", "fig3"], ["torch"], 'reproduce: needs torch; install with: pip install "fedgap[train]"'),
    (["studio", "--no-browser"], ["fastapi"], 'studio: needs fastapi; install with: pip install "fedgap[web]"'),
    (["deploy", "up", "embedded"], ["flwr"], 'deploy: needs flwr; install with: pip install "fedgap[deploy]"'),
    (["sweep", "embedded", "seed=0,1", "--out", "DIR", "--ray", "auto"], ["ray"],
     '--ray: needs ray; install with: pip install "fedgap[ray]"'),
])
def test_a_missing_extra_is_named_in_one_line(tmp_path, arguments, absent, message):
    arguments = [argument.replace("DIR", str(tmp_path / "new")) for argument in arguments]
    done = subprocess.run([sys.executable, "-c", WITHOUT.format(absent=absent, arguments=arguments)],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"fedgap: {message}\n")
    assert not (tmp_path / "new").exists()


def test_planning_needs_no_extra():
    absent = ["torch", "safetensors", "fastapi", "uvicorn", "plotly", "flwr", "ray", "mlxtend", "matplotlib"]
    for arguments in (["plan", "paper-mnist", "-q"], ["bound", "paper-mnist"]):
        done = subprocess.run([sys.executable, "-c", WITHOUT.format(absent=absent, arguments=arguments)],
                              capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_scheme_by_its_import_and_a_wrong_name():
    code = "fedgap.planning.schemes.no_pruning:SCHEME"
    plan = json.loads(fedgap("plan", "paper-mnist", "budget.delay_s=300", "--scheme", code, "--json").out)
    assert plan["scheme"] == "no_pruning"
    message = one_line(fedgap("plan", "paper-mnist", "--scheme", "no_prunning"), 2)
    assert message.startswith("--scheme: must be one of proposed, no_pruning, all_clients,")
    assert message.endswith("got 'no_prunning'; did you mean 'no_pruning'?")
    assert "proposed, no_pruning, all_clients" in " ".join(fedgap("plan", "--help", columns=300).out.split())
