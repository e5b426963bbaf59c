"""Test the folder of compiled code."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.cache import cache_folder


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the user's cache a path where no folder can exist, whoever runs the tests; return the folder of temporary files."""
    (tmp_path / "file").touch()
    monkeypatch.delenv("EINSAT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return temporary


def test_the_usual_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EINSAT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "einsat"
    monkeypatch.setenv("EINSAT_CACHE", str(tmp_path / "other"))
    assert cache_folder() == tmp_path / "other"


def test_where_the_users_cache_cannot_be_written_it_is_a_private_temporary_folder(unwritable: Path) -> None:
    folder = cache_folder()
    assert folder.parent == unwritable
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_folder() == folder


def test_a_temporary_folder_that_others_may_write_is_not_used(unwritable: Path, tmp_path: Path) -> None:
    folder = cache_folder()
    folder.chmod(0o777)
    assert cache_folder() == tmp_path / "file" / "cache" / "einsat"
    folder.chmod(0o700)
    assert cache_folder() == folder
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    assert cache_folder() == tmp_path / "file" / "cache" / "einsat"
