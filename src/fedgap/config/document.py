"""What scenarios and experiments have in common: loading from a preset or a file, overrides, saving, comparing."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr

from fedgap.config.error_messages import KEYS, shown
from fedgap.config.overrides import Override, blame, parse_overrides
from fedgap.config.yaml_files import Value, parse, read_file, write_document
from fedgap.errors import InputError, did_you_mean

PRESETS: Mapping[str, tuple[str, ...]] = {
    "scenario": ("paper-mnist", "paper-cifar10", "city"),
    "experiment": ("embedded", "mnist", "cifar10"),
}
"""Names of the presets for each kind of document. Each is a commented YAML file in ``presets/`` that can be copied."""

SHORTHAND_KEYS = ("format", "mode", "seed", "labels", "fleet")
"""Keys of a scenario file that are replaced when it is loaded, for example ``fleet`` by the clients that it
describes."""

_WITH_ARTICLE = {"scenario": "a scenario", "experiment": "an experiment", "plan": "a plan"}
_SUFFIXES = (".yaml", ".yml", ".json")


class Section(BaseModel):
    """Base of all sections of a document: it is immutable and rejects unknown keys.

    The docstring of each key becomes its description in error messages and in the JSON Schema.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


@dataclass(frozen=True)
class Written:
    """A document as it was written in a file or given as a dict, before anything is checked."""

    value: Value
    """Its content as plain Python values."""
    label: str
    """Name of the document in error messages."""
    folder: Path = Path()
    """Folder to which its paths are relative."""

    text: str | None = None
    """Its YAML text; None if it does not come from a YAML file."""


class Document(Section):
    """Base of :class:`Scenario` and :class:`Experiment`."""

    kind: ClassVar[str]
    _written: Written | None = PrivateAttr(default=None)
    _overrides: tuple[Override, ...] = PrivateAttr(default=())

    @classmethod
    def load(cls, source: str | Path, overrides: Iterable[str | Override] = ()) -> Self:
        """Read a ``.yaml`` or ``.json`` file, or a preset by its name.

        :param overrides: ``key.path=value`` texts, applied in order before anything is checked; in an experiment
            ``scenario.key=value`` reaches into its scenario.
        :raises InputError: one line that names the key and says what would be right.
        """
        return cls._build(open_document(source, cls.kind), parse_overrides(overrides))

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], overrides: Iterable[str | Override] = (), folder: str | Path = "."
    ) -> Self:
        """Build a document from a dict with the keys of a file; paths in it are relative to ``folder``."""
        return cls._build(Written(plain(document), cls.kind, Path(folder)), parse_overrides(overrides))

    @classmethod
    def _build(cls, written: Written, overrides: Sequence[Override]) -> Self:
        try:
            document = cls._checked(written, overrides)
        except InputError as error:
            raise blame(error, overrides) from None
        document._written, document._overrides = written, tuple(overrides)
        return document

    @classmethod
    def _checked(cls, written: Written, overrides: Sequence[Override]) -> Self:
        """Apply the overrides to ``written`` and check the result."""
        raise NotImplementedError

    def _source(self) -> Written:
        """Return what this document was built from. If it was built field by field, return its resolved values."""
        return self._written or Written(self.to_dict(), self.kind)

    def with_overrides(self, overrides: Iterable[str | Override]) -> Self:
        """Return this document with further ``key.path=value`` overrides, as if it had been loaded with them."""
        return self._build(self._source(), [*self._overrides, *parse_overrides(overrides)])

    @property
    def folder(self) -> Path:
        """Folder to which its paths are relative."""
        return self._source().folder

    @property
    def outline(self) -> str:
        """A one-line summary."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return all values as plain Python values. References to other files are replaced by their content."""
        raise NotImplementedError

    def save(self, path: str | Path) -> Path:
        """Write :meth:`to_dict` as YAML, or as JSON if the path ends in ``.json``."""
        return write_document({"format": 1} | self.to_dict(), Path(path))

    def hash(self) -> str:
        """Return 16 hex digits that identify the content: they change if anything in :meth:`to_dict` changes."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.outline}>"

    def __str__(self) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.hash())

    @classmethod
    def file_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of a file, for editors and other programs."""
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.model_json_schema()}


def open_document(name: str | Path, kind: str) -> Written:
    """Read a file by its path or a preset by its name; ``kind`` is ``scenario`` or ``experiment``."""
    if isinstance(name, str) and name in PRESETS[kind]:
        text = preset_text(name)
        return Written(parse(text, f"preset {name}"), f"preset {name}", text=text)
    path = Path(name)
    suffix = path.suffix.lower()
    looks_like_path = suffix in _SUFFIXES or "/" in str(name) or "\\" in str(name) or isinstance(name, Path)
    if not looks_like_path and not exists(path):
        raise _unknown(str(name), kind)
    if suffix == ".csv" and path.is_file():
        line = f"clients: {path.name}" if kind == "scenario" else "scenario: FILE"
        raise InputError(f"{shown(path)}: is a CSV file, which only lists clients; name {_WITH_ARTICLE[kind]} file, "
                         f"which has the line '{line}'")
    text = read_file(path)
    value = parse(text, shown(path), as_json=suffix == ".json")
    if (other := _kind(value)) not in (kind, None):
        raise InputError(f"{shown(path)}: is {_WITH_ARTICLE[str(other)]} file; name {_WITH_ARTICLE[kind]} file")
    return Written(value, shown(path), path.parent, text if suffix != ".json" else None)


def kind_of(name: str | Path) -> str:
    """Return ``scenario`` or ``experiment`` for a file or preset, and ``scenario`` if its content does not tell."""
    for kind, names in PRESETS.items():
        if name in names:
            return kind
    path = Path(name)
    value = parse(read_file(path), shown(path), as_json=path.suffix.lower() == ".json") if path.is_file() else None
    return _kind(value) or "scenario"


def _kind(document: Value) -> str | None:
    """Return the kind of a document by its keys; None if they do not tell."""
    if not isinstance(document, dict):
        return None
    if "segments" in document and "theta" in document:
        return "plan"
    if "clients" in document or "fleet" in document:
        return "scenario"
    return "experiment" if "scenario" in document else None


def _unknown(name: str, kind: str) -> InputError:
    known = ", ".join(PRESETS[kind])
    for other, names in PRESETS.items():
        if name in names and other != kind:
            return InputError(f"{shown(name)}: is {_WITH_ARTICLE[other]} preset; the {kind} presets are {known}")
    hint = did_you_mean(name, PRESETS[kind]) or f"; presets: {known}"
    return InputError(f"{shown(name)}: is neither a file nor {_WITH_ARTICLE[kind]} preset{hint}")


def preset_text(name: str) -> str:
    """Return the text of a preset's file, with its comments."""
    return resources.files("fedgap.config").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")


def exists(path: Path) -> bool:
    """Return whether a file or folder exists; false also for a path that is too long or otherwise impossible."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def plain(value: Any) -> Any:
    """Return the value with mappings as dicts, and with tuples and arrays as lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def stripped(value: Any) -> Any:
    """Return a document's value without the keys that are null, because such a key counts as left out.

    An unknown key stays even if it is null, so that it is reported as unknown later.
    """
    return _stripped(value, KEYS.union(SHORTHAND_KEYS))


def _stripped(value: Any, known: set[str] | None) -> Any:
    if isinstance(value, dict):
        return {
            key: _stripped(item, None if key == "arguments" else known)
            for key, item in value.items()
            if item is not None or (known is not None and key not in known)
        }
    if isinstance(value, list):
        return [_stripped(item, known) for item in value]
    return value
