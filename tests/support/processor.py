"""Marks of tests that need instructions which not every processor has."""

from __future__ import annotations

import pytest

from lower.targets.cpu.onednn.match import multiplies_bytes

needs_bytes = pytest.mark.skipif(not multiplies_bytes(), reason="this processor multiplies no bytes (AVX-512 VNNI, AVX-VNNI, AMX)")
