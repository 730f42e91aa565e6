"""The bill of materials lists what is installed, and the constraints name every file by its hash."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def test_the_bill_has_every_direct_requirement_that_is_installed_once(tmp_path):
    subprocess.run([sys.executable, "-m", "tools.sbom", str(tmp_path / "sbom.json")], check=True, cwd=ROOT)
    bill = json.loads((tmp_path / "sbom.json").read_bytes())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    versions = {item["name"]: item["version"] for item in bill["components"]}
    assert len(versions) == len(bill["components"])
    for text in metadata.requires("fedgap"):
        name = canonicalize_name(Requirement(text).name)
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        assert name == "fedgap" or versions[name] == installed
    known = {item["bom-ref"] for item in [*bill["components"], bill["metadata"]["component"]]}
    assert {item["ref"] for item in bill["dependencies"]} == known
    assert {ref for item in bill["dependencies"] for ref in item["dependsOn"]} <= known
    assert versions["starlette"]  # which nobody here asks for directly


def test_the_constraints_have_a_hash_for_every_package_within_our_bounds():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text  # no index is named
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert all(re.match(r"[\w.\[\]-]+==\S+( ; .+?)? \\\n +--hash=sha256:[0-9a-f]{64}", block) for block in blocks)
    pinned: dict[str, list[str]] = {}
    for block in blocks:
        requirement = Requirement(block.partition("\\")[0].strip())
        pinned.setdefault(canonicalize_name(requirement.name), []).append(str(requirement.specifier)[2:])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        assert name == "fedgap" or all(map(requirement.specifier.contains, pinned[name])), name
