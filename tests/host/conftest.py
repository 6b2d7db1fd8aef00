"""Markers that transformers' tests carry: pytest refuses those it does not know."""

import pytest

MARKERS = ("accelerate_tests", "all_flash_attn_test", "flash_attn_test", "flash_attn_3_test", "flash_attn_4_test")
MARKERS += ("order", "torch_compile_test")


def pytest_configure(config: pytest.Config) -> None:
    for name in MARKERS:
        config.addinivalue_line("markers", f"{name}: of transformers' own tests")
