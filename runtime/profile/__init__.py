"""Measured kernel times: one SQLite file a user, shared by processes, portable as JSON lines."""

from runtime.profile.database import Database, Record, default_path
from runtime.profile.device import device_key

__all__ = ["Database", "Record", "default_path", "device_key"]
