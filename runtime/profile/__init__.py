"""Measured kernel times: one SQLite file a user, shared by processes, portable as JSON lines."""

from runtime.profile.database import Database, Record, default_path

__all__ = ["Database", "Record", "default_path"]
