"""Turn pydantic's errors into one line that names the key, says what would be right, and quotes the input."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fedgap.errors import InputError, did_you_mean

Location = tuple[str | int, ...]
"""Place of a value in a document: keys, and positions in lists."""


def shown(value: object, limit: int = 60) -> str:
    """Format a value for a one-line message: shortened, printable, and with quotes around strings."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a huge number"
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value)
    limit = limit if isinstance(value, str) else 300  # paths may be longer, because the file's name is at their end
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[: limit + 1])
    cut = printable if len(printable) <= limit else printable[: limit - 1] + "…"
    return f"'{cut}'" if isinstance(value, str) else cut


def key_path(location: Iterable[str | int]) -> str:
    """Return the path of a key as people write it: ``("clients", 3, "phi")`` becomes ``clients[3].phi``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else ("." if path else "") + shown(part)[1:-1]
    return path


def unknown_key(location: Location, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return the message for an unknown key.

    :param known: the keys that are allowed there; :param elsewhere: paths of keys one level deeper, which are suggested
        if their last part is the unknown key.
    """
    known = list(known)
    deeper = next((path for path in elsewhere if path.rpartition(".")[2] == str(location[-1])), None)
    hint = f"; did you mean '{deeper}'?" if deeper is not None else did_you_mean(location[-1], known)
    hint = hint or f"; known here: {', '.join(known)}"
    return f"{key_path(location)}: unknown key{hint}"


def first_error(
    error: ValidationError, document: object, extra: Sequence[str] = (), prefix: Location = ()
) -> InputError:
    """Return the error that comes first in the document as one line.

    :param document: the values that were validated; :param extra: further allowed top-level keys, for "did you mean";
    :param prefix: path of the document, if it is part of a larger one.
    """
    first = min(error.errors(include_url=False), key=lambda item: _position(document, item["loc"]))
    return InputError(_line(first, _MODELS.get(error.title), extra, prefix))


_MODELS: dict[str, type[BaseModel]] = {}
"""The registered models by the name of their class."""
KEYS: set[str] = set()
"""All keys of all kinds of files, at any level."""


def register(model: type[BaseModel]) -> type[BaseModel]:
    """Class decorator that makes a model's keys known to error messages, so that "did you mean" can suggest them."""
    _MODELS[model.__name__] = model
    pending = [model]
    while pending:
        fields = pending.pop().model_fields
        KEYS.update(fields)
        pending += filter(None, (_find_model(field.annotation) for field in fields.values()))
    return model


def _position(document: object, location: Location) -> list[int]:
    """Return a sort key that orders locations as in the document; missing keys come last at their level."""
    position: list[int] = []
    here: Any = document
    for part in location:
        if isinstance(here, Mapping) and part in here:
            position.append(list(here).index(part))
            here = here[part]
        elif isinstance(here, (list, tuple)) and isinstance(part, int) and part < len(here):
            position.append(part)
            here = here[part]
        else:
            return [*position, 1_000_000_000]
    return position


def _line(item: Any, model: type[BaseModel] | None, extra: Sequence[str], prefix: Location) -> str:
    kind, location, value = item["type"], tuple(item["loc"]), item.get("input")
    path = key_path(prefix + location)
    owner = _model_at(model, location[:-1])
    if kind == "extra_forbidden":
        known = list(owner.model_fields) if owner is not None else []
        if len(location) > 1 or owner is None:
            scenario = _model_at(_MODELS.get("Scenario"), location[:-1])
            if model is _MODELS.get("Experiment") and scenario is not None and location[-1] in scenario.model_fields:
                return f"{path}: unknown key; did you mean 'scenario.{path}'?"
            return unknown_key(prefix + location, known)
        return unknown_key(prefix + location, known + list(extra), _paths_below(owner))
    if kind == "missing":
        field = owner.model_fields.get(str(location[-1])) if owner is not None else None
        what = f" ({_brief(field.description)})" if field is not None and field.description else ""
        return f"{path}: missing{what}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        inner = _model_at(model, location)
        names = list(inner.model_fields) if inner is not None else []
        keys = f" with keys such as {', '.join(names[:4])}" if names else ""
        return f"{path}: must be a mapping{keys}; got {shown(value)}"
    if kind == "literal_error":
        choices = [word.strip().strip("'") for word in item["ctx"]["expected"].replace(" or ", ", ").split(",")]
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        return f"{path}: must be one of {', '.join(choices)}; got {shown(value)}{hint}"
    if kind in ("tuple_type", "list_type"):
        return f"{path}: must be a list; got {shown(value)}"
    return f"{path}: {item['msg']}" if path else str(item["msg"])


def _paths_below(owner: type[BaseModel]) -> list[str]:
    """Return the paths of all keys one level below, such as ``budget.delay_s``, also those of an experiment's scenario.
    """
    paths = []
    for name, field in owner.model_fields.items():
        inner = _MODELS.get("Scenario") if name == "scenario" else _find_model(field.annotation)
        if inner is not None and name != "clients":
            paths += [f"{name}.{key}" for key in inner.model_fields]
    return paths


def _brief(description: str) -> str:
    """Return the first sentence of a key's description in the form that is put into parentheses."""
    sentence = " ".join(description.split()).split(". ")[0].rstrip(".")
    return sentence[0].lower() + sentence[1:] if sentence[1:2].islower() or sentence.startswith("A ") else sentence


def _model_at(model: type[BaseModel] | None, location: Location) -> type[BaseModel] | None:
    """Return the pydantic model of the section at ``location``, or None if there is none."""
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model is not None else None
        model = _find_model(field.annotation) if field is not None else None
    return model


def _find_model(annotation: object) -> type[BaseModel] | None:
    """Return the model in an annotation such as ``tuple[Client, ...]`` or ``Budget | None``; None if it has none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        model = _find_model(inner)
        if model is not None:
            return model
    return None
