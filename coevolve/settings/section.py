"""What every section of a configuration is."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0.0)]
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
#: The type of a validation error whose message is a sentence of its own.
SENTENCE = "sentence"


def _is_nothing(value: Any) -> bool:
    """Whether a value says that there is none of something; 0 is a number."""
    return value is None or value is False or value in ("", [], {}, ())


class Strict(BaseModel):
    """Base of all config sections: immutable; unknown keys are errors.

    A key whose default says that there is none of something (None, False, empty) is left out of JSON, and so of
    digests, while it has that default: a new key of this kind reruns nothing. Every other default is in the digests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    _ABSENT: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def variant(cls, raw: Any) -> type[BaseModel]:
        """The class of a raw section, which the base of several classes tells by a key."""
        return cls

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Note the keys whose default is None, False or empty."""
        defaults = {name: field.get_default(call_default_factory=True) for name, field in cls.model_fields.items()}
        cls._ABSENT = frozenset(name for name, default in defaults.items() if _is_nothing(default))

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        absent = {key for key in self._ABSENT if _is_nothing(getattr(self, key, None))}
        return {key: value for key, value in handler(self).items() if key not in absent}


class SourceFile(Strict):
    """A file from outside the kit, checked against its sha256 before use."""

    path: str
    sha256: str
