"""Annotations for the values of a document, which check a value and say in an error what would be right.

There are numbers (with unit, range, and the reason for the range), texts, truth values, histograms and registered
names. pydantic's own ``Field(gt=...)`` knows no units and no reasons, and its errors would have to be translated.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from operator import ge, gt, le, lt
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedgap.config.error_messages import shown
from fedgap.errors import InputError
from fedgap.registry import Registry

SMALLEST = 1e-40
"""A positive number below this probably has the wrong unit; dividing by it could overflow."""
SLOWEST_CLOCK_HZ = 1e6
"""No processor that trains a model is slower than this. A smaller number was probably meant in MHz or GHz."""

_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+([eE][-+]?[0-9]+)?")


def wrong(text: str) -> PydanticCustomError:
    """Return a validation error with this text; :func:`error_messages.first_error` adds the key in front."""
    return PydanticCustomError("fedgap", "{text}", {"text": text})


class Checked:
    """Base class of annotations that check a value with the method ``check``."""

    check: Callable[..., Any]
    """Return the checked value, or raise an error that says what would be right."""

    json_schema: Callable[..., JsonSchemaValue]
    """The JSON Schema of the value, for editors."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return self.json_schema()


@dataclass(frozen=True)
class Number(Checked):
    """A finite number in a range. Numeric strings are accepted (YAML 1.1 and CSV files have them), booleans are not."""

    kind: ClassVar[str] = "a number"
    """What is expected, in words."""
    unit: str = ""
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    whole: bool = False
    limit: float = 1e30
    """The largest absolute value. A larger one probably has the wrong unit, and products could overflow."""
    smallest: float = SMALLEST
    """The smallest plausible value, if values must be above 0."""
    reason: str = ""
    """Why the range is as it is; the error message contains it."""

    def check(self, value: Any) -> float | int:
        """Return the number, or raise an error that says what would be right."""
        number = self._number(value)
        if not math.isfinite(number):
            raise wrong(f"must be a finite number; got {shown(value)}")
        if not all(holds(number, bound) for _, bound, holds in self._bounds()):
            why = f" ({self.reason})" if self.reason else ""
            raise wrong(f"must be {self.range_text()}{why}; got {shown(value)}")
        if abs(number) > self.limit:
            raise wrong(f"must be at most {self.limit:g}; got {shown(value)}")
        if self.above == 0 and number < self.smallest:
            hint = "(is the unit right?)"
            if self.smallest == SLOWEST_CLOCK_HZ:
                hint = f"Hz (if MHz was meant, write {number:g}e6; if GHz, {number:g}e9)"
            raise wrong(f"must be at least {self.smallest:g} {hint}; got {shown(value)}")
        if self.whole:
            if number != int(number):
                raise wrong(f"must be a whole number; got {shown(value)}")
            return int(number)
        return number

    def _number(self, value: Any) -> float:
        if isinstance(value, float):
            return value
        try:
            if isinstance(value, (Real, str)) and not isinstance(value, bool):
                return float(value)
        except OverflowError:
            return math.inf
        except ValueError:
            pass
        remedy = f" (in {self.unit}, without the unit)" if self.unit and isinstance(value, str) else ""
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip()):
            remedy = " (write a decimal point: 1.5, not 1,5)"
        raise wrong(f"must be {self.kind}{remedy}; got {shown(value)}")

    def _bounds(self) -> list[tuple[str, float, Callable[[float, float], bool]]]:
        bounds = (("above", self.above, gt), ("at least", self.at_least, ge), ("below", self.below, lt),
                  ("at most", self.at_most, le))
        return [(word, bound, holds) for word, bound, holds in bounds if bound is not None]

    def range_text(self) -> str:
        """Return the range in words, e.g. ``above 0 Hz`` or ``at least 0 and below 1``."""
        if self.at_least is not None and self.at_least == self.at_most:
            return f"{self.at_least:g}"
        words = " and ".join(f"{word} {bound:g}" for word, bound, _ in self._bounds())
        return f"{words} {self.unit}".rstrip()

    def json_schema(self) -> JsonSchemaValue:
        """Return the JSON Schema with the type and the bounds."""
        bounds = {
            "exclusiveMinimum": self.above,
            "minimum": self.smallest if self.smallest > SMALLEST else self.at_least,
            "exclusiveMaximum": self.below,
            "maximum": self.limit if self.at_most is None and self.whole else self.at_most,
        }
        result: JsonSchemaValue = {"type": "integer" if self.whole else "number"}
        return result | {name: bound for name, bound in bounds.items() if bound is not None}


class NumberOrAuto(Number):
    """A number, or the word ``auto``, which lets the planner choose the number."""

    kind = "a number, or auto"

    def check(self, value: Any) -> Any:
        """Return the number or ``auto``, or raise an error that says what would be right."""
        return value if value == "auto" else super().check(value)

    def json_schema(self) -> JsonSchemaValue:
        """Return the JSON Schema of a number or the word ``auto``."""
        return {"anyOf": [super().json_schema(), {"const": "auto"}]}


def count(reason: str, *, at_least: int = 1, limit: float = 1e9) -> Number:
    """Return the annotation of a whole number."""
    return Number(at_least=at_least, limit=limit, whole=True, reason=reason)


def clock(reason: str) -> Number:
    """Return the annotation of a processor's clock frequency in Hz."""
    return Number("Hz", above=0, smallest=SLOWEST_CLOCK_HZ, reason=reason)


@dataclass(frozen=True, eq=False)
class Named(Checked):
    """A name in a registry. The object with that name is not imported by the check."""

    registry: Registry

    def check(self, value: Any) -> str:
        """Return the name if the registry has it or if it has the form ``package.module:NAME``."""
        if not isinstance(value, str):
            names = ", ".join(self.registry.built_in)
            raise wrong(f"must be a name such as {names}; got {shown(value)}")
        try:
            self.registry.check(value)
        except InputError as error:  # remove the noun at the beginning, because the key is put there later
            raise wrong(str(error).partition(": ")[2]) from None
        return value

    def json_schema(self) -> JsonSchemaValue:
        """Return the JSON Schema of a string, with the built-in names as examples."""
        return {"type": "string", "examples": list(self.registry.built_in)}


def _word(longest: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise wrong(f"must be a text; got {shown(value)}")
        if not value.strip() or len(value) > longest or not value.isprintable():
            raise wrong(f"must be a printable text of 1 to {longest} characters; got {shown(value)}")
        return value

    return check


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "on", "false", "no", "off"):
        return value.lower() in ("true", "yes", "on")
    raise wrong(f"must be true or false; got {shown(value)}")


def _histogram(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        as_text = " (in a CSV as 12;0;7)" if isinstance(value, str) else ""
        raise wrong(f"must be a list of sample counts, one per class{as_text}; got {shown(value)}")
    if len(value) < 2:
        raise wrong(f"must have at least 2 classes (with one class there is nothing to learn); got {len(value)}")
    counts = tuple(_samples(item, label) for label, item in enumerate(value))
    if sum(counts) == 0:
        raise wrong("must have at least one sample; got only zeros")
    return counts


def _samples(value: Any, label: int) -> int:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (OverflowError, ValueError):
        number = math.nan
    if not 0 <= number <= 1e12 or number != int(number):
        raise wrong(f"must be whole numbers of at least 0; got {shown(value)} for class {label}")
    return int(number)


def _shares(value: Any) -> tuple[float, ...]:
    if not isinstance(value, (list, tuple)) or len(value) < 2:
        raise wrong(f"must be a list of two or more numbers from 0 to 1; got {shown(value)}")
    number = Number(at_least=0, at_most=1, reason="it is a share")
    return tuple(float(number.check(item)) for item in value)


Word = Annotated[str, BeforeValidator(_word(200)), Field(min_length=1, max_length=200)]
Text = Annotated[str, BeforeValidator(_word(2000)), Field(min_length=1, max_length=2000)]
File = Annotated[str, BeforeValidator(_word(4096)), Field(min_length=1, max_length=4096)]
Truth = Annotated[bool, BeforeValidator(_truth)]
Histogram = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=2), BeforeValidator(_histogram)]
Shares = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=2), BeforeValidator(_shares)]
Probability = Annotated[float, Number(at_least=0, at_most=1, reason="it is a probability")]
Concentration = Annotated[
    float, Number(above=0, limit=1e9, reason="a Dirichlet distribution needs a positive parameter")
]
Format = Annotated[int, Number(at_least=1, at_most=1, whole=True, reason="the only version of the format")]
Seed = Annotated[int, count("a seed is not negative", at_least=0, limit=2**53)]
