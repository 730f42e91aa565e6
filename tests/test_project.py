"""The papers of the project: licence, citation, changelog, README, and documentation whose links and names hold."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from fedgap.errors import EXTRA_OF_PACKAGE

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_licence() -> None:
    text = read("LICENSE")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert PROJECT["license"] == "Apache-2.0"


def test_citation_names_the_software_and_the_paper() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what the format requires
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    (paper,) = citation["references"]
    assert paper["title"] == "Closing the Generalization Gap in Parameter-efficient Federated Edge Learning"
    assert [person["family-names"] for person in paper["authors"]] == ["Du", "Lyu", "Cao", "Wen", "Cui", "Xu"]


def test_changelog_keeps_its_form() -> None:
    lines = read("CHANGELOG.md").splitlines()
    assert lines[0] == "# Changelog"
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    assert any(f"[{PROJECT['version']}]" in line for line in versions[1:]), "the version has no released section"
    for line in versions[1:]:
        assert re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", line), line
    groups = {line for line in lines if line.startswith("### ")}
    assert groups <= {f"### {name}" for name in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_two_commands_are_named(page: str) -> None:
    text, makefile = read(page), read("Makefile")
    for target in ("demo", "test"):
        assert f"make {target}" in text
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_what_guards_the_branch_is_what_a_newcomer_runs() -> None:
    assert "make test" in read(".ci/run")
    (job,) = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"].values()
    assert job["steps"][-1] == {"run": "make test"}
    stated = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert job["strategy"]["matrix"]["python"] == stated == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={stated[0]}"


def test_a_commit_is_checked_as_make_lint_checks() -> None:
    (local,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert local["repo"] == "local"  # the versions are those of .venv
    (lint,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)
    commands = [line.removeprefix("\t@$(BIN)/").split()[0] for line in lint.splitlines()]
    assert [hook["entry"].split()[0] for hook in local["hooks"]] == [f".venv/bin/{name}" for name in commands]


# --- what pip installs -----------------------------------------------------------------------------------------------


def package_name(requirement: str) -> str:
    return re.split(r"[\[<>=~! ]", requirement)[0].lower()


def test_planning_is_the_core_and_extras_bring_the_rest() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"train", "web", "deploy", "ray", "tensorboard", "all", "docs", "dev"}
    core = {package_name(requirement) for requirement in PROJECT["dependencies"]}
    solvers = {"scipy", "highspy", "cvxpy", "clarabel"}
    assert core == solvers | {"numpy", "pydantic", "pyyaml", "typer", "click", "rich", "matplotlib"}
    assert extras["all"] == ["fedgap[train,web,deploy,ray,tensorboard]"]
    for package, extra in EXTRA_OF_PACKAGE.items():
        assert package in {package_name(requirement) for requirement in extras[extra]}, package


def test_every_upper_bound_has_its_reason() -> None:
    bounded = [line for line in read("pyproject.toml").splitlines() if re.match(r'\s+"[\w\[\]-]+[^"]*<[^"]*"', line)]
    assert bounded
    assert all("  # " in line for line in bounded), bounded


# --- documentation ---------------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def links(page: Path) -> list[str]:
    """The page's links inside the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8")))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Where a link can point to on a page: its headings as GitHub writes them, and explicit ids."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    seen, todo = set(), [index]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert {page_id(page) for page in (ROOT / "docs").rglob("*.md")} <= {page_id(page) for page in seen}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_in_the_documentation_parses(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        ast.parse(re.sub(r"\A%%writefile .*\n", "", block))


def test_commands_in_the_documentation_exist() -> None:
    from fedgap.cli.main import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups if isinstance(group.name, str)}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```(?:bash|sh|text|console)?\n(.*?)```", text, flags=re.DOTALL)
        code = "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", text)])
        named = set(re.findall(r"^(?:\$ |\.venv/bin/)?fedgap ([a-z]\w*)", code, re.MULTILINE))
        assert named <= known, f"{page_id(page)} names commands that do not exist"


# --- nothing private -------------------------------------------------------------------------------------------------

TEXT = {".md", ".py", ".yaml", ".yml", ".toml", ".json", ".cff", ".csv", ".html", ".js", ".css", ".svg", ""}
FOLDERS = ("src", "tests", "docs", "benchmarks", "experiments", "tools", ".ci", ".github")
# Folders that exist on somebody's machine only, and words for who sat there; spelt so that this file has none of them.
PLACES = ["/" + "work/", "/" + "root/", "/" + "home/", r"\.\./" + "shared", r"\bhelp" + r"ers?\b"]
PRIVATE = re.compile("|".join(PLACES))


def test_no_file_names_a_private_place() -> None:
    files = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a file in a worktree
    files += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in files
        if path.suffix in TEXT and "__pycache__" not in path.parts and ".egg-info" not in str(path)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)
