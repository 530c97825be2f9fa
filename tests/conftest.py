"""What all tests share: golden files with a switch to renew them."""

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDENS = Path(__file__).parent / "goldens"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-goldens", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/goldens/<name>, or write it there with --renew-goldens."""

    def compare(name: str, text: str) -> None:
        path = GOLDENS / name
        if request.config.getoption("--renew-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing; make it with pytest --renew-goldens and read it"
        assert text == path.read_text(), f"{path} differs; if that is meant, renew it with pytest --renew-goldens"

    return compare
