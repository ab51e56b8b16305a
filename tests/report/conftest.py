import pytest
from report.explored import measurement

from coevolve.config.report import ReportConfig


@pytest.fixture
def measure():
    return measurement


@pytest.fixture
def report():
    return ReportConfig(confidence=0.95, collapse=0.2)


@pytest.fixture
def labels():
    return {"sft": "SFT", "eto": "ETO", "coevolve": "Co-evolving", "odd": "50 % odd_method & more"}
