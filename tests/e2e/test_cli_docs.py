"""The command line's reference and the examples in the docs are those of the real thing."""

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.terminal import fedgap
from tools.command_reference import PAGE, commands, rewritten

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
KNOWN = commands()
SAMPLE = {"docs/index.md", "docs/how-to/device-figures.md", "docs/reference/exit-codes.md"}
"""Pages whose commands `make test` runs; `make test-all` runs those of all pages."""
NOT_RUN = {
    r"COMMAND|my_package|(calibrate experiment|plan calibrated)\.yaml": "stands for a name of the reader's",
    r"deploy (server|node|key) ": "needs two machines; tests/e2e/test_deploy.py runs them",
    r" mnist|--data DATA": "needs the data set's files",
    r"fedgap studio": "runs until it is interrupted",
    r"fedgap profile (--listen|EXPERIMENT --server)": "needs two machines; tests/running has both ends",
    r"fedgap reproduce(?! --redraw)": "minutes; tests/e2e/test_reproduce.py has it in small",
}
"""What is not run, and why."""
PLANNING = ("plan", "bound", "cost", "compare", "frontier")
"""Commands whose output does not depend on the machine; where a page shows it, it must be true."""


@dataclass(frozen=True)
class Command:
    line: str
    shown: tuple[str, ...]
    """The output that the page shows below it."""

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)[1:]

    @property
    def name(self) -> str:
        words = self.words
        return " ".join(words[:2]) if words[0] == "deploy" else words[0]


def blocks(text: str) -> list[tuple[str, str, str]]:
    """The page's code: language, content, and the text since the block before."""
    found, end = [], 0
    for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        found.append((match[1], match[2], text[end:match.start()]))
        end = match.end()
    return found


def commands_of(block: str) -> list[Command]:
    """The commands of a block, with the lines that follow each until the next."""
    found: list[tuple[str, list[str]]] = []
    for line in re.sub(r"\\\n\s*", " ", block).splitlines():
        if match := re.match(r"(?:\$ )?(?:\.venv/bin/)?(fedgap .*)", line):
            found += [(part.partition("; echo")[0], []) for part in match[1].split(" && ")]
        elif found and line and not line.startswith(("...", "$ ")):
            found[-1][1].append(line)
    return [Command(line, tuple(shown)) for line, shown in found]


def steps(page: Path) -> list[Command | tuple[str, str]]:
    """What a reader does: commands, and files (name, content) that the page says to write."""
    found: list[Command | tuple[str, str]] = []
    for language, content, before in blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            named = re.search(r"into `(\w+\.py)`[^`]*$", before) or re.match(r"# (\w+\.py)", content)
            if named:
                found.append((named[1], content))
        elif language in ("", "bash", "sh", "console", "text"):
            given = commands_of(content)
            if not given and found and isinstance(found[-1], Command) and (not before.strip() or "───" in content):
                lines = [line for line in content.splitlines() if line and not line.startswith("...")]
                found[-1] = Command(found[-1].line, (*found[-1].shown, *lines))
            found += given
    return found


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_COMMANDS = [page for page in PAGES if any(isinstance(step, Command) for step in steps(page))]


def test_the_reference_is_written_from_the_commands():
    """`python -m tools.command_reference` brings it up to date."""
    text = PAGE.read_text(encoding="utf-8")
    assert rewritten(text) == text
    marked = set(re.findall(r"<!-- options: ([a-z -]+?) -->", text))
    for name, command in KNOWN.items():
        assert re.search(rf"^### `fedgap {name}\b", text, re.MULTILINE), name
        options = [parameter.name for parameter in command.params
                   if parameter.param_type_name == "option" and parameter.name not in ("help", "allow", "as_json")]
        assert name in marked or not options, name


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_id)
def test_commands_and_options_exist(page):
    for step in steps(page):
        if isinstance(step, Command) and "COMMAND" not in step.line:
            assert step.name in KNOWN, step.line
            known = {name for parameter in KNOWN[step.name].params
                     for name in (*parameter.opts, *parameter.secondary_opts)}
            assert {word.partition("=")[0] for word in step.words if word.startswith("--")} <= known | {"--help"}


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_id)
def test_commands_run(page, tmp_path, monkeypatch):
    """In the page's order, in one folder; commands whose output shows an error must fail with it."""
    if page_id(page) not in SAMPLE and not os.environ.get("FEDGAP_FULL"):
        pytest.skip("runs with FEDGAP_FULL=1")
    pytest.importorskip("torch")
    prepare_folder(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for step in steps(page):
        if isinstance(step, tuple):
            monkeypatch.delitem(sys.modules, Path(step[0]).stem, raising=False)  # an earlier page may use the name
            Path(step[0]).write_text(step[1], encoding="utf-8")
        elif not any(re.search(pattern, step.line) for pattern in NOT_RUN):
            answer = run(step)
            fails = any(line.startswith("fedgap: ") for line in step.shown)
            assert (answer.code != 0) == fails, f"{step.line}: {answer.err}"
            if step.words[0] in PLANNING:
                said = flat(answer.out + answer.err)
                assert [line for line in step.shown if not line.isdigit() and flat(line) not in said] == [], step.line


def run(step: Command):
    words = step.words
    to_file = words.index(">") if ">" in words else None
    answer = fedgap(*words[:to_file])
    if to_file is not None:
        Path(words[to_file + 1]).write_text(answer.out, encoding="utf-8")
    return answer


def flat(text: str) -> str:
    """Without line breaks, repeated spaces and solving times."""
    return re.sub(r"\(exact, [^)]*\)", "(exact)", " ".join(text.split()))


def prepare_folder(page: Path, folder: Path) -> None:
    """What the reader has made before, by the names that pages use for it, and the digits of one page's example."""
    text = page.read_text(encoding="utf-8")
    if not any(isinstance(step, Command) and step.name == "init" for step in steps(page)):
        fedgap("init", folder / "my-fleet")
        for name in ("scenario.yaml", "fleet.csv", "experiment.yaml"):
            shutil.copyfile(folder / "my-fleet" / name, folder / name)
        shutil.copyfile(folder / "experiment.yaml", folder / "my-experiment.yaml")
    if "save_test_set.py" in text:
        code = next(content for language, content, _ in blocks(text) if "save_test_set.py" in content)
        exec(code.replace('"digits.npz"', repr(str(folder / "digits.npz"))), {})


def test_the_plan_in_the_readme_is_the_plan_one_gets(tmp_path):
    assert fedgap("init", tmp_path / "my-fleet").code == 0
    real = {line.rstrip() for line in fedgap("plan", tmp_path / "my-fleet" / "scenario.yaml").out.splitlines()}
    plan = next(step for step in steps(ROOT / "README.md")
                if isinstance(step, Command) and step.line.startswith("fedgap plan"))
    assert len(plan.shown) >= 10
    assert [line for line in plan.shown if line not in real] == []
