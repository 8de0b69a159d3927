"""How many cases of each layer type do tests give to check_layer? Read from their source, not run.

A case counts for the types in the snippet it passes: written there, in a helper that makes it, or
in the values that stand for the type in an f-string.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterator
from math import prod


class LayerTests:
    """The tests of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.known: dict[str, ast.AST] = {}  # name -> what defines it, of the file
        self.tests = []
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.known[node.name] = node
                if node.name.startswith("test_"):
                    self.tests.append(node)
            elif isinstance(node, ast.Assign):
                self.known |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}

    def cases(self, types: Container[str]) -> Counter[str]:
        """Of each of `types` the number of cases, but for the backends."""
        found: Counter[str] = Counter()
        for test in self.tests:
            for snippet in _snippets(test):
                named = self._types(snippet, test)
                found.update({name: self._times(test) for name in named if name in types})
        return found

    def _types(self, snippet: ast.expr, test: ast.FunctionDef) -> set[str]:
        texts = self._strings(snippet, test, set())
        written = {name for text in texts for name in re.findall(r"\btype: '(\w+)'", text)}
        is_open = any(re.search(r"\btype: '$", text) for text in texts)
        return written | texts if is_open else written

    def _strings(self, node: ast.AST, test: ast.FunctionDef, seen: set[str]) -> set[str]:
        """All strings in an expression and behind its names: local, of the file, parameters."""
        found = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                found.add(inner.value)
            elif isinstance(inner, ast.Name) and inner.id not in seen:
                seen.add(inner.id)
                for other in self._behind(inner.id, test):
                    found |= self._strings(other, test, seen)
        return found

    def _behind(self, name: str, test: ast.FunctionDef) -> list[ast.AST]:
        if any(a.arg == name for a in test.args.args):
            return list(test.decorator_list)
        local: list[ast.AST] = [
            node.value
            for node in ast.walk(test)
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        ]
        return local or [self.known[k] for k in (name,) if k in self.known]

    def _times(self, test: ast.FunctionDef) -> int:
        """The product of the lengths of a test's lists of values, 1 for those made by a call."""
        lists = [d.args[1] for d in _calls(test.decorator_list, "parametrize")]
        written = [self.known.get(n.id, n) if isinstance(n, ast.Name) else n for n in lists]
        return prod(len(getattr(n, "elts", getattr(n, "keys", "1"))) for n in written)


def _snippets(test: ast.FunctionDef) -> list[ast.expr]:
    return [call.args[1] for call in _calls([test], "check_layer")]


def _calls(nodes: list, name: str) -> Iterator[ast.Call]:
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                called = getattr(inner.func, "id", getattr(inner.func, "attr", ""))
                if called == name:
                    yield inner
