"""The program's code with questions asked beside it: what is iterated over, put into text, called.

The questions are functions that give back what they are given, so that the code does what it did; lines and columns
stay. `watch` answers them.
"""

from __future__ import annotations

import ast
from typing import Final

OVER: Final = "__agent_replay_over__"
"""Asked of what is iterated over."""
HELD: Final = "__agent_replay_held__"
"""Asked of what is counted or sorted."""
TEXT: Final = "__agent_replay_text__"
"""Asked of a text that was made of values."""
SHOWN: Final = "__agent_replay_shown__"
"""Asked of what is printed."""
CALLED: Final = "__agent_replay_called__"
"""Asked of what is called."""
FINALISED: Final = "__agent_replay_finalised__"
"""Told that a finaliser runs."""

_ITERATES = frozenset("dict enumerate filter iter list map next tuple zip".split())  # noqa: SIM905 (names)
_ITERATING_METHODS = frozenset("extend fromkeys join writelines".split())  # noqa: SIM905 (names)
_COUNTS = frozenset("bool len sorted".split())  # noqa: SIM905 (names)
_MAKES_TEXT = frozenset("ascii format repr str".split())  # noqa: SIM905 (names)


def rewritten(source: str | bytes, filename: str) -> ast.Module:
    """The tree of a file, with the questions in it. Raises SyntaxError, ValueError."""
    tree = ast.parse(source, filename)
    _Rewriter().visit(tree)
    return ast.fix_missing_locations(tree)


def _ask(question: str, node: ast.expr) -> ast.Call:
    asked = ast.Call(ast.copy_location(ast.Name(question, ast.Load()), node), [node], [])
    return ast.copy_location(asked, node)


class _Rewriter(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = _ask(OVER, node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = _ask(OVER, node.iter)
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _ask(OVER, node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        unpacks = any(isinstance(target, ast.Tuple | ast.List) for target in node.targets)
        if unpacks and not isinstance(node.value, ast.Tuple | ast.List):
            node.value = _ask(OVER, node.value)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        left = node.left
        if isinstance(node.op, ast.Mod) and isinstance(left, ast.Constant) and isinstance(left.value, str):
            return _ask(TEXT, node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):  # its format may be text of this kind too, and has to stay
                part.value = self.visit(part.value)
        return _ask(TEXT, node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node  # annotations may become text, and stay what they are

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.target = self.visit(node.target)
        node.value = None if node.value is None else self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._function(node)
        if node.name == "__del__":
            told = ast.Expr(ast.Call(ast.Name(FINALISED, ast.Load()), [], []))
            node.body.insert(1 if ast.get_docstring(node) is not None else 0, ast.copy_location(told, node.body[0]))
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        self._function(node)
        return node

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = node.func
        name = called.id if isinstance(called, ast.Name) else ""
        method = called.attr if isinstance(called, ast.Attribute) else ""
        if name in _ITERATES or method in _ITERATING_METHODS:
            node.args = [each if isinstance(each, ast.Starred) else _ask(OVER, each) for each in node.args]
        elif isinstance(called, ast.Attribute) and method == "pop" and not node.args:
            called.value = _ask(OVER, called.value)
        elif name in _COUNTS:
            node.args = [each if isinstance(each, ast.Starred) else _ask(HELD, each) for each in node.args]
        elif name == "print":
            node.args = [each if isinstance(each, ast.Starred) else _ask(SHOWN, each) for each in node.args]
        if name in _MAKES_TEXT or method == "format":
            return _ask(TEXT, node)
        if name not in _ITERATES | _COUNTS and name not in ("print", "super", "locals", "vars", "dir", "exec", "eval"):
            node.func = _ask(CALLED, called)
        return node
