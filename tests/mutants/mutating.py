"""The mutants of a source file: one small change each, as a replacement of a piece of its text.

A mutant has a name that survives changes elsewhere in the file: its file, function, operator, the
text of its line, the change, and a number among those that are alike. No annotation, docstring,
message or line of a log is changed, and nothing that only type checkers read.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2s
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dibs"


class Mutant(NamedTuple):
    file: str
    """Below `src/dibs`."""
    function: str
    operator: str
    line: str
    change: str
    number: int
    """Which of those that are alike, from 0."""
    start: int
    end: int
    was: str
    """The text of the file from byte `start` to byte `end`."""
    text: str
    """What replaces it."""
    lines: range
    around: range | None
    """The lines of the outermost function; None at the level of the module or class."""

    @property
    def name(self) -> tuple[str, str, str, str, str, int]:
        return self[:6]

    @property
    def id(self) -> str:
        return blake2s("|".join(map(str, self.name)).encode(), digest_size=4).hexdigest()

    @property
    def path(self) -> Path:
        return SOURCE / self.file

    @property
    def module(self) -> str:
        return ".".join(("dibs", *Path(self.file).with_suffix("").parts)).removesuffix(".__init__")

    def mutated(self) -> str:
        source = self.path.read_bytes()
        if source[self.start : self.end].decode() != self.was:
            raise SystemExit(f"{self.file} was changed while its mutants were tried")
        return (source[: self.start] + self.text.encode() + source[self.end :]).decode()

    def __str__(self) -> str:
        where = f"{self.file}:{self.lines.start} {self.function}".strip()
        return f"{self.id}  {where}  [{self.operator}]  {self.change}\n          {self.line}"


def mutants_of(path: Path) -> list[Mutant]:
    found: list[Mutant] = []
    seen: Counter[tuple[str, ...]] = Counter()
    for mutant in _File(path).mutants():
        alike = mutant.name[:5]
        found.append(mutant._replace(number=seen[alike]))
        seen[alike] += 1
    return found


_BOUNDARIES = (0, 1, 2)
"""Other numbers, and all at the level of the module, set a pace or a size and guard nothing."""
_FLIPPED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
}
_LUA = (
    ("compare", r"==", "~="),
    ("compare", r"~=", "=="),
    ("compare", r"<=", "<"),
    ("compare", r"<(?!=)", "<="),
    ("compare", r">=", ">"),
    ("compare", r"(?<!-)>(?!=)", ">="),
    ("and or", r"\band\b", "or"),
    ("and or", r"\bor\b", "and"),
    ("not", r"\bnot ", ""),
    ("number", r"\+ 1\b", "+ 2"),
    ("statement", r"(?<=then )redis\.call\([^\n]*\)(?= end$)", ""),
    ("statement", r"^ +redis\.call\('[A-Z]+', [^\n]*\)$", ""),
    ("statement", r"^redis\.call\('[A-Z]+', [^\n]*\)$", ""),
)
_SQL = (
    ("compare", r"<=", "<"),
    ("compare", r"<(?![=>])", "<="),
    ("compare", r">=", ">"),
    ("compare", r"(?<!<)>(?!=)", ">="),
    ("compare", r"\bIS NOT NULL\b", "IS NULL"),
    ("compare", r"\bIS NULL\b", "IS NOT NULL"),
    ("clause", r"(?<=WHERE )(?!NOT EXISTS)[^\n]*? AND\b", ""),
    ("and or", r"\bAND\b", "OR"),
    ("and or", r"\bOR\b(?! (?:ROLLBACK|IGNORE|REPLACE))", "AND"),
    ("not", r"\bNOT (?!NULL|EXISTS)", ""),
    ("min max", r"\bGREATEST(?=\()", "LEAST"),
    ("min max", r"\bMAX(?=\()", "MIN"),
    ("clock", r"\bclock_timestamp\(\)", "now()"),
    ("number", r"\+ 1\b", "+ 2"),
    ("constant", r"(?<== )true\b", "false"),
    ("constant", r"(?<== )false\b", "true"),
)
_SPEAK_LUA_OR_SQL = (
    *("adapters/sqlite/", "adapters/redis/", "adapters/postgres/"),
    *("fencing/redis.py", "fencing/sql.py"),
)
_STATEMENTS = re.compile(
    r"\b(SELECT|UPDATE|INSERT INTO|DELETE FROM|WHERE|BEGIN|COMMIT)\b|\bEXISTS\b"
)
_SCRIPTS = re.compile(r"redis\.call\(|\breturn\b|\blocal\b")


class _File:
    def __init__(self, path: Path) -> None:
        self._file = str(path.relative_to(SOURCE))
        self._source = path.read_bytes()
        self._lines = self._source.decode().splitlines()
        self._starts = [0]
        for line in self._source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._functions: list[str] = []
        self._around: range | None = None
        self._bound: set[str] = set()
        self._texts = _LUA if "redis" in self._file else _SQL
        self._is_text = _SCRIPTS if "redis" in self._file else _STATEMENTS

    def mutants(self) -> Iterator[Mutant]:
        yield from self._body(ast.parse(self._source).body)

    # Places

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(
            node.end_lineno, node.end_col_offset
        )

    def _segment(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _mutant(
        self, operator: str, span: tuple[int, int], text: str, change: str = ""
    ) -> Iterator[Mutant]:
        start, end = span
        first = self._source.count(b"\n", 0, start) + 1
        last = self._source.count(b"\n", 0, end) + 1
        was = self._source[start:end].decode()
        told = change or f"{' '.join(was.split())} -> {' '.join(text.split()) or 'nothing'}"
        lines, function = range(first, last + 1), ".".join(self._functions)
        line = self._lines[first - 1].strip()
        yield Mutant(
            *(self._file, function, operator, line, told, 0),
            *(start, end, was, text, lines, self._around),
        )

    # Statements

    def _body(self, statements: list[ast.stmt]) -> Iterator[Mutant]:
        for statement in statements:
            yield from self._statement(statement)

    def _statement(self, node: ast.stmt) -> Iterator[Mutant]:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                if node.name != "__repr__":
                    yield from self._scope(node)
            case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Assert() | ast.Import():
                pass
            case ast.ImportFrom() | ast.Pass() | ast.Raise() | ast.Global() | ast.Nonlocal():
                pass
            case ast.Expr(ast.Constant()):
                pass
            case ast.Expr(ast.Call() as call):
                if not _says_only(call):
                    yield from self._mutant("statement", self._span(node), "pass")
                    yield from self._expression(call)
            case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
                if isinstance(node, ast.AugAssign) or self._may_go(target):
                    yield from self._mutant("statement", self._span(node), "pass")
                yield from self._expression(node.value)
                self._bind(target)
            case ast.AnnAssign():
                if node.value is not None:
                    yield from self._expression(node.value)
                self._bind(node.target)
            case ast.Return():
                if node.value is not None and not isinstance(node.value, ast.Constant):
                    yield from self._mutant("return", self._span(node.value), "None")
                    yield from self._expression(node.value)
            case ast.If():
                if node.orelse:
                    text = f"not ({self._segment(node.test)})"
                    yield from self._mutant("negated", self._span(node.test), text)
                else:
                    yield from self._mutant("guard", self._span(node.test), "False")
                yield from self._expression(node.test)
                yield from self._body(node.body)
                yield from self._body(node.orelse)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from self._child(child)

    def _child(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.stmt():
                yield from self._statement(node)
            case ast.expr():
                yield from self._expression(node)
            case ast.match_case(body=[ast.Expr(ast.Call(func=ast.Name("assert_never")))]):
                pass
            case ast.match_case():
                if node.guard is not None:
                    yield from self._mutant("guard", self._span(node.guard), "False")
                    yield from self._expression(node.guard)
                yield from self._body(node.body)
            case ast.ExceptHandler():
                yield from self._body(node.body)
            case ast.withitem():
                yield from self._expression(node.context_expr)
            case ast.comprehension():
                yield from self._expression(node.iter)
                for test in node.ifs:
                    yield from self._mutant("guard", self._span(test), "True")
                    yield from self._expression(test)
            case ast.keyword(arg="strict"):  # zip's: an assertion
                pass
            case ast.keyword():
                yield from self._expression(node.value)
            case _:
                pass

    def _scope(self, node: ast.FunctionDef | ast.ClassDef) -> Iterator[Mutant]:
        around, bound = self._around, self._bound
        self._functions.append(node.name)
        if isinstance(node, ast.FunctionDef):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            self._bound = {one.arg for one in given}
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from self._expression(default)
            self._around = self._around or range(node.lineno, node.end_lineno + 1)
        else:
            self._bound = set()
        yield from self._body(node.body)
        self._functions.pop()
        self._around, self._bound = around, bound

    def _bind(self, target: ast.expr) -> None:
        self._bound |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}

    def _may_go(self, target: ast.expr) -> bool:
        """Whether the program still has a value for the target without the assignment."""
        if isinstance(target, ast.Name):
            return self._around is not None and target.id in self._bound
        if isinstance(target, ast.Tuple):
            return all(map(self._may_go, target.elts))
        in_making = self._functions[-1:] in (["__init__"], ["__post_init__"])
        return isinstance(target, ast.Subscript | ast.Attribute) and not in_making

    # Expressions

    def _expression(self, node: ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.Constant(str()) | ast.JoinedStr():
                yield from self._text(node)
                return
            case ast.Constant(bool() as value):
                yield from self._mutant("constant", self._span(node), str(not value))
            case ast.Constant(int() as value) if self._around and value in _BOUNDARIES:
                yield from self._mutant("constant", self._span(node), f"{value + 1}")
            case ast.Compare(ops=[op], comparators=[right]):
                yield from self._operator("compare", op, node.left, right)
            case ast.BinOp(op=ast.Add() | ast.Sub()) if not _is_text(node):
                yield from self._operator("arithmetic", node.op, node.left, node.right)
            case ast.BinOp(op=ast.BitOr(), left=ast.Attribute(), right=ast.Attribute()):
                yield from self._without(node, [node.left, node.right])
            case ast.BoolOp():
                first, second = node.values[:2]
                if len(node.values) == 2:
                    yield from self._operator("and or", node.op, first, second)
                yield from self._without(node, node.values)
            case ast.UnaryOp(op=ast.Not()):
                yield from self._mutant("not", self._span(node), f"({self._segment(node.operand)})")
            case ast.IfExp():
                text = f"not ({self._segment(node.test)})"
                yield from self._mutant("negated", self._span(node.test), text)
            case ast.Call(func=ast.Name("min" | "max" as name)):
                other = "max" if name == "min" else "min"
                yield from self._mutant("min max", self._span(node.func), other)
            case ast.Call(
                func=ast.Name("isinstance"), args=[_, ast.BinOp(op=ast.BitOr()) as kinds]
            ):
                yield from self._without(kinds, [kinds.left, kinds.right])
            case ast.Set():
                yield from self._elements(node)
            case ast.Call(func=ast.Name("frozenset"), args=[ast.Tuple() | ast.List() as items]):
                yield from self._elements(items)
            case ast.Lambda():
                yield from self._expression(node.body)
                return
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            yield from self._child(child)

    def _operator(
        self, kind: str, op: ast.AST, left: ast.expr, right: ast.expr
    ) -> Iterator[Mutant]:
        was, now = _FLIPPED[type(op)]
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._source[start:end].decode()
        found = re.search(
            rf"(?<![\w<>=!]){re.escape(was).replace(' ', chr(92) + 's+')}(?![\w=])", between
        )
        if found is not None:
            place = start + len(between[: found.start()].encode())
            change = f"{was} -> {now}"
            yield from self._mutant(kind, (place, place + len(found[0].encode())), now, change)

    def _without(self, node: ast.expr, parts: list[ast.expr]) -> Iterator[Mutant]:
        """Each part left out: a clause, or one of several flags or types."""
        joint = {ast.And: " and ", ast.Or: " or ", ast.BitOr: " | "}[type(node.op)]
        for gone in parts:
            kept = joint.join(f"({self._segment(one)})" for one in parts if one is not gone)
            change = f"without {' '.join(self._segment(gone).split())}"
            yield from self._mutant("clause", self._span(node), f"({kept})", change)

    def _elements(self, node: ast.Set | ast.Tuple | ast.List) -> Iterator[Mutant]:
        for gone in node.elts:
            kept = "".join(f"{self._segment(one)}, " for one in node.elts if one is not gone)
            change = f"without {' '.join(self._segment(gone).split())}"
            if isinstance(node, ast.Set):
                text = f"{{{kept}}}" if kept else "set()"
            else:
                text = f"({kept})"
            yield from self._mutant("element", self._span(node), text, change)

    def _text(self, node: ast.expr) -> Iterator[Mutant]:
        """Changes of Lua or SQL, in the text of the file: an f-string is mutated between braces."""
        if not self._file.startswith(_SPEAK_LUA_OR_SQL):
            return
        start, _ = self._span(node)
        segment = self._segment(node)
        if not self._is_text.search(segment):
            return
        changes = [
            (operator, found.span(), text)
            for operator, pattern, text in self._texts
            for found in re.finditer(pattern, segment, re.MULTILINE)
        ]
        changes += [("clause", span, "") for span in _clauses(segment)]
        for operator, (first, last), text in changes:
            gone = segment[first:last]
            comment = "--" in segment[:first].rpartition("\n")[2]
            if gone.strip() and not comment and gone.count("(") == gone.count(")"):
                place = start + len(segment[:first].encode())
                span = (place, place + len(gone.encode()))
                yield from self._mutant(f"text {operator}", span, text)


def _clauses(segment: str) -> Iterator[tuple[int, int]]:
    """Where the clauses of a line are, each with its AND or OR before it."""
    for found in re.finditer(r"\b(and|or)\b", segment, re.IGNORECASE):
        depth, end = 0, found.end()
        while end < len(segment) and segment[end] not in '\n"':
            depth += (segment[end] == "(") - (segment[end] == ")")
            if depth < 0 or (
                depth == 0 and re.match(r"(and|or|then|do)\b", segment[end:], re.IGNORECASE)
            ):
                break
            end += 1
        if depth <= 0:
            yield found.start(), end


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        or (isinstance(side, ast.BinOp) and _is_text(side))
        for side in sides
    )


def _says_only(call: ast.Call) -> bool:
    """Whether the call writes a line into a log, a warning or the text of an exception."""
    called = ast.unparse(call.func)
    return bool(
        re.match(r"_?log(ging)?\b|_log\(\)|getLogger\(|warnings\.|super\(\)\.__init__", called)
    )
