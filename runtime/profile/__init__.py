"""The profile database: results of runs, above all kernel times, in one SQLite file a user, portable as JSON lines."""

from runtime.profile.database import Database, default_path
from runtime.profile.tables import CheckRow, DerivationRow, ProofRow, RaceTime, Record, SearchRow

__all__ = ["CheckRow", "Database", "DerivationRow", "ProofRow", "RaceTime", "Record", "SearchRow", "default_path"]
