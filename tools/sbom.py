"""Write the software bill of materials of this environment in CycloneDX's JSON format: ``python -m tools.sbom FILE``.

It lists fedgap and every installed package that it needs, with version, licence and dependencies. Everything comes from
the metadata of the installed packages; the network is not used."""

from __future__ import annotations

import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement

from fedgap.files import write_json

ROOT = "fedgap"
EXTRAS = ("all", "dev")
"""The extras of fedgap that ``make`` installs."""


def bill(root: str = ROOT, extras: tuple[str, ...] = EXTRAS) -> dict[str, Any]:
    """The document. Its serial number is computed from its content, so equal environments give equal files."""
    graph = requirements(root, extras)
    components = [component(name) for name in sorted(graph) if name != root]
    content = " ".join(item["bom-ref"] for item in components)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}", "version": 1,
        "metadata": {"component": component(root) | {"type": "application"},
                     "tools": {"components": [{"type": "application", "name": "tools/sbom.py"}]}},
        "components": components,
        "dependencies": [{"ref": reference(name), "dependsOn": sorted(map(reference, needed))}
                         for name, needed in sorted(graph.items())],
    }


def requirements(root: str, extras: tuple[str, ...]) -> dict[str, set[str]]:
    """Every installed package that ``root`` with these extras needs, directly or indirectly, with the packages that it
    needs itself."""
    graph: dict[str, set[str]] = {}
    wanted, seen = [(canonical(root), extra) for extra in ("", *extras)], set()
    while wanted:
        name, extra = wanted.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        needed = graph.setdefault(name, set())
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            other = canonical(requirement.name)
            try:
                metadata.version(other)
            except metadata.PackageNotFoundError:  # left out by the user
                continue
            needed |= {other} - {name}
            wanted += [(other, more) for more in ("", *requirement.extras)]
    return graph


def component(name: str) -> dict[str, Any]:
    """A package in the form of CycloneDX."""
    about = metadata.metadata(name)
    licence = next(iter(about.get_all("License-Expression", [])), None)
    named = [classifier.rpartition(" :: ")[2] for classifier in about.get_all("Classifier", [])
             if classifier.startswith("License :: ") and not classifier.endswith("OSI Approved")]
    licences = [{"expression": licence}] if licence else [{"license": {"name": text}} for text in named]
    entry = {"type": "library", "bom-ref": reference(name), "name": name, "version": metadata.version(name),
             "purl": reference(name)}
    return entry | ({"licenses": licences} if licences else {})


def reference(name: str) -> str:
    """The package URL of a package."""
    return f"pkg:pypi/{canonical(name)}@{quote(metadata.version(name))}"


def canonical(name: str) -> str:
    """The normalised name of a package, as used by the package index."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    write_json(Path(sys.argv[1]), bill())
    print(f"wrote {sys.argv[1]}")
