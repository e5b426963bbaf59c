"""Equal terms are one object, whichever thread creates them."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor import node as node_module

TYPE = TensorType("float32", (3, 17))


def test_a_node_that_another_thread_makes_meanwhile_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made_meanwhile: list[Node] = []
    asked = 0

    class Interrupted(weakref.WeakValueDictionary[Any, Node]):
        """Lets another thread create a node after the caller has found none and before the caller creates it."""

        def get(self, key: Any, default: Any = None) -> Any:
            nonlocal asked
            known, asked = super().get(key, default), asked + 1
            if asked == 1:
                made_meanwhile.append(placeholder(0, TYPE))
            return known

    monkeypatch.setattr(node_module, "_interned", Interrupted())
    assert placeholder(0, TYPE) is made_meanwhile[0]
