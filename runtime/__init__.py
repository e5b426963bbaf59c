"""Run optimised programs: plan, session, vendor library, dispatcher, measuring. Needs numpy and oneDNN only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.executable import Executable
    from runtime.session import Session

__all__ = ["Executable", "Session"]


def __getattr__(name: str) -> Any:
    """Import lazily: importing ``runtime.plan`` must not import the session."""
    if name == "Session":
        from runtime.session import Session

        return Session
    if name == "Executable":
        from runtime.executable import Executable

        return Executable
    raise AttributeError(f"module 'runtime' has no attribute {name!r}")
