"""Match fragments to single calls of the vendor library, views as strides and epilogues as post-operations."""

from lower.library.call import Argument, Launch, LibraryCall, PostOperation
from lower.library.match import implementations, match

__all__ = ["Argument", "Launch", "LibraryCall", "PostOperation", "implementations", "match"]
