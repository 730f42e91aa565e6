"""The documentation's site builds without a warning, its notebooks run, its symbols are real keys and modules."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fedgap.config import Scenario, schema
from tools import documentation_site as site
from tools import notebooks

ROOT = Path(__file__).parents[2]
SAMPLE = "bring-a-selection-rule"
"""The notebook that `make test` runs; `make test-all` runs both."""


# --- the site --------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)],
                          cwd=ROOT, capture_output=True, text=True, check=False,
                          env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


def test_every_page_and_picture_is_in_the_site(built: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (built / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), page
    assert (built / "repository" / "CHANGELOG.html").is_file()
    for page in built.rglob("*.html"):
        for target in re.findall(r'<img [^>]*src="([^"]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page}: {target}"


def test_the_site_needs_no_other_host(built: Path) -> None:
    for page in built.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="([^"]+)"'
                            r'|<link[^>]*href="([^"]+)"[^>]*rel="stylesheet"', text)
        assert not [url for urls in loaded for url in urls if re.match(r"(https?:)?//", url)], page


def test_the_api_reference_shows_examples_as_code(built: Path) -> None:
    text = (built / "reference" / "api.html").read_text(encoding="utf-8")
    assert "fedgap.planning.solve.plan" in text
    assert ":class:" not in text
    assert ":param" not in text
    assert "<blockquote>" not in text  # what Markdown makes of >>> outside of code


def test_pages_are_adapted_outside_of_code_only() -> None:
    page = ROOT / "docs" / "how-to" / "plan.md"
    text = ("A list:\n- <!-- n: x -->5<!-- / --> s, see [rounds](../../experiments/rounds/README.md#it)\n\n"
            "```\na\n- <!-- b -->\n```\n")
    assert site.outside_code(text, lambda plain: site.adapt(plain, page)) == (
        "A list:\n\n- 5 s, see [rounds](../repository/experiments/rounds/README.md#it)\n\n```\na\n- <!-- b -->\n```\n")


# --- notebooks -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_it_shows(path: Path, tmp_path: Path) -> None:
    """`python -m tools.notebooks` writes the outputs again."""
    pytest.importorskip("torch")
    if path.stem != SAMPLE and not os.environ.get("FEDGAP_FULL"):
        pytest.skip("runs with FEDGAP_FULL=1")
    shown = path.read_text(encoding="utf-8")
    given = notebooks.run(shown, tmp_path)
    assert notebooks.differences(shown, given) == []
    for name in re.findall(r"images/tutorials/([\w-]+\.png)", shown):
        assert (tmp_path / name).is_file()


def test_two_tutorials_are_notebooks() -> None:
    assert {path.stem for path in notebooks.NOTEBOOKS} == {"bring-a-selection-rule", "check-a-figure"}


def test_differences_are_found() -> None:
    assert notebooks.differences("θ = 452.49\n", "θ = 452.50\n") == []
    assert notebooks.differences("θ = 452.49\n", "θ = 552.49\n")
    assert notebooks.differences("optimal θ = 1\n", "feasible θ = 1\n")
    assert notebooks.differences("a\n", "a\nb\n")
    assert notebooks.differences("+0.4 ± 3.2 points\n", "-1.4 ± 2.2 points\n") == []


# --- symbols ---------------------------------------------------------------------------------------------------------

def keys(document: dict, definitions: dict, prefix: str = "") -> set[str]:
    """Every key of a JSON Schema, by its path."""
    found = set()
    for name, value in document.get("properties", {}).items():
        found.add(prefix + name)
        for choice in (value, *value.get("anyOf", ()), value.get("items", {})):
            inner = definitions.get(choice.get("$ref", "").rpartition("/")[2], choice)
            found |= keys(inner, definitions, f"{prefix}{name}.")
    return found


def test_symbols_lead_to_keys_and_modules() -> None:
    schemas = schema()
    known = {kind: keys(document, document.get("$defs", {})) for kind, document in schemas.items()}
    client = set(type(Scenario.load("paper-mnist").clients[0]).model_fields)
    rows = re.findall(r"^\| (?!symbol|---)(.+?) \| .+? \| (.+?) \| `(fedgap[\w.]+)` \|$",
                      (ROOT / "docs" / "reference" / "symbols.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 40
    for symbol, cell, module in rows:
        import_module(module)
        for part in cell.split(";"):
            for key in re.findall(r"`([\w.]+)`", part):
                if "*plan*" in part or "*run*" in part:
                    continue
                kind = "experiment" if "of an experiment" in part else "scenario"
                assert key in known[kind] or key.removeprefix("clients.") in client, f"{symbol}: {key}"
