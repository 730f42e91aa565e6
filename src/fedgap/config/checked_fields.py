"""Checked values: a number with its unit, its range and the reason for it; a word; a yes or no."""

import math
import re
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedgap.config.error_messages import shown

SMALLEST = 1e-40
"""Below this a unit slipped, and quotients would leave float64."""


_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+([eE][-+]?[0-9]+)?")


def wrong(text: str) -> PydanticCustomError:
    """A validation error with this text, to which the key is added by ``messages``."""
    return PydanticCustomError("fedgap", "{text}", {"text": text})


@dataclass(frozen=True)
class Number:
    """Annotation of a finite number in a range. Numeric strings count (YAML 1.1 and CSV give them), booleans do not."""

    unit: str = ""
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    whole: bool = False
    limit: float = 1e30
    """The largest size there is room for; beyond it a unit slipped, and products would leave float64."""
    reason: str = ""
    """Why the range is what it is, for whoever left it."""

    def check(self, value: Any) -> float | int:
        """The number, or the error that tells what would be right."""
        number = self._number(value)
        if not math.isfinite(number):
            raise wrong(f"must be a finite number; got {shown(value)}")
        if not self._inside(number):
            why = f" ({self.reason})" if self.reason else ""
            raise wrong(f"must be {self.range_text()}{why}; got {shown(value)}")
        if abs(number) > self.limit:
            raise wrong(f"must be at most {self.limit:g}; got {shown(value)}")
        if self.above == 0 and number < SMALLEST:
            raise wrong(f"must be at least {SMALLEST:g} (is the unit right?); got {shown(value)}")
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
        in_unit = f" (in {self.unit}, the unit left out)" if self.unit and isinstance(value, str) else ""
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip()):
            in_unit = " (a decimal sign is a point: 1.5, not 1,5)"
        raise wrong(f"must be a number{in_unit}; got {shown(value)}")

    def _inside(self, number: float) -> bool:
        return not (
            (self.above is not None and number <= self.above)
            or (self.at_least is not None and number < self.at_least)
            or (self.below is not None and number >= self.below)
            or (self.at_most is not None and number > self.at_most)
        )

    def range_text(self) -> str:
        """The range in words, e.g. ``above 0 Hz`` or ``at least 0 and below 1``."""
        if self.at_least is not None and self.at_least == self.at_most:
            return f"{self.at_least:g}"
        bounds = (("above", self.above), ("at least", self.at_least), ("below", self.below), ("at most", self.at_most))
        words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        return f"{words} {self.unit}".rstrip()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        bounds = {
            "exclusiveMinimum": self.above,
            "minimum": self.at_least,
            "exclusiveMaximum": self.below,
            "maximum": self.limit if self.at_most is None and self.whole else self.at_most,
        }
        result: JsonSchemaValue = {"type": "integer" if self.whole else "number"}
        return result | {name: bound for name, bound in bounds.items() if bound is not None}


@dataclass(frozen=True)
class _Word:
    """Annotation of a short printable text; a number counts as its digits."""

    longest: int = 200

    def check(self, value: Any) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise wrong(f"must be a text; got {shown(value)}")
        if not value.strip() or len(value) > self.longest or not value.isprintable():
            raise wrong(f"must be a printable text of 1 to {self.longest} characters; got {shown(value)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "minLength": 1, "maxLength": self.longest}


@dataclass(frozen=True)
class _Truth:
    """Annotation of a yes or no."""

    def check(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "yes", "on", "false", "no", "off"):
            return value.lower() in ("true", "yes", "on")
        raise wrong(f"must be true or false; got {shown(value)}")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "boolean"}


@dataclass(frozen=True)
class _Histogram:
    """Annotation of a label histogram: samples of each class, at least two classes, at least one sample."""

    def check(self, value: Any) -> tuple[int, ...]:
        if not isinstance(value, (list, tuple)):
            as_text = " (in a CSV as 12;0;7)" if isinstance(value, str) else ""
            raise wrong(f"must be a list of sample counts, one a class{as_text}; got {shown(value)}")
        if len(value) < 2:
            raise wrong(f"must have at least 2 classes (with one there is nothing to tell apart); got {len(value)}")
        counts = tuple(self._count(item, label) for label, item in enumerate(value))
        if sum(counts) == 0:
            raise wrong("must hold at least one sample; got zeros only")
        return counts

    @staticmethod
    def _count(item: Any, label: int) -> int:
        try:
            number = float(item) if isinstance(item, (int, float, str)) and not isinstance(item, bool) else math.nan
        except (OverflowError, ValueError):
            number = math.nan
        if not 0 <= number <= 1e12 or number != int(number):
            raise wrong(f"must hold whole numbers from 0 on; got {shown(item)} for class {label}")
        return int(number)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2}


Word = Annotated[str, _Word()]
File = Annotated[str, _Word(4096)]
Truth = Annotated[bool, _Truth()]
Histogram = Annotated[tuple[int, ...], _Histogram()]
Probability = Annotated[float, Number(at_least=0, at_most=1, reason="it is a probability")]


def count(reason: str, *, at_least: int = 1, limit: float = 1e9) -> Number:
    """A whole number of things."""
    return Number(at_least=at_least, limit=limit, whole=True, reason=reason)
