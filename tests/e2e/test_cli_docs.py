"""The command line's reference and the examples in the docs are those of the real thing."""

import re
from pathlib import Path

import pytest
import typer

from fedgap.cli.main import app
from tests.e2e.terminal import fedgap
from tests.e2e.test_cli_door import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/tutorial.md", "docs/how-to/plan.md", "docs/how-to/joules-and-seconds.md",
         "docs/how-to/calibrate.md",
         "docs/how-to/use-the-trained-model.md", "docs/reference/cli.md"]
TREE = typer.main.get_command(app)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_every_command_and_option(name):
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    section = re.split(r"^##", text, flags=re.MULTILINE)
    shared = next(part for part in section if part.startswith(" What all commands share"))
    section = shared + next(part for part in section if part.startswith(f"# `fedgap {name}"))
    for parameter in TREE.commands[name].params:
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in section, parameter.opts


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_examples_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = [line.removeprefix("$ ") for block in re.findall(r"```\n(.*?)```", text, re.DOTALL)
             for line in block.splitlines()]
    used = [word for line in lines for word in re.findall(r"(?:^|&& )fedgap ([a-zA-Z]+)", line)]
    assert set(used) <= {*TREE.commands, "COMMAND"}
    for line in lines:
        options = re.findall(r"\s(--[a-z-]+)", line.partition("#")[0])
        if (match := re.match(r"fedgap ([a-z]+)", line)) and options:
            known = {option for parameter in TREE.commands[match[1]].params for option in parameter.opts} | {"--help"}
            assert set(options) <= known, line


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


def test_the_plan_in_the_readme_is_the_plan_one_gets(tmp_path):
    assert fedgap("init", tmp_path / "my-fleet").code == 0
    real = {line.rstrip() for line in fedgap("plan", tmp_path / "my-fleet" / "scenario.yaml").out.splitlines()}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = next(b for b in re.findall(r"```\n(.*?)```", text, re.DOTALL) if "fedgap init" in b)
    shown = [line for line in block.splitlines() if line and not line.startswith(("$", "..."))]
    assert len(shown) >= 10
    assert [line for line in shown if line not in real] == []
