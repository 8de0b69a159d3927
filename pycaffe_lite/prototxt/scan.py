"""Where the layers of a text are, and what is wrong with its tokens, without knowing the schema.

The scan serves error messages: it goes through the whole text whatever is wrong with it, in one
pass and without recursion, so that a layer's name is known even if it follows the error.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
    |(?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')
    |(?P<open>[{<])
    |(?P<close>[}>])
    |(?P<word>[A-Za-z_][\w+-]*)
    |(?P<number>[+-]?\.?[0-9][\w.+-]*)
    |(?P<other>.)""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"""\\(?:[abfnrtv\\?'"]|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7])|[xX][0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}"""
    r"""|U00(?:0[0-9A-Fa-f]|10)[0-9A-Fa-f]{4})"""
)
NOT_UTF8 = re.compile("[\ud800-\udfff]")  # bytes that could not be decoded stand there as these
# Python's own parser takes these for numbers; Caffe's does not.
_ONLY_PYTHON = re.compile(r"\+|-?0[bBoO]|.*_")


@dataclass
class Block:
    """One `layer { }` or `layers { }`, at any depth."""

    field: str
    start: int  # offset of the field's name; of the brace from the second element of a list on
    top_level: bool
    end: int = -1  # offset after the closing brace; the text's end where it is missing
    name: str = ""
    type: str = ""


@dataclass
class Scan:
    """What one pass over a text found. Offsets count characters."""

    blocks: list[Block] = field(default_factory=list)  # in the order they start
    problem: tuple[int, str] | None = None  # the first bad token: offset, what is wrong
    unclosed: list[tuple[int, str]] = field(default_factory=list)  # offset, field; outermost first
    overclosed: int | None = None  # offset of the first closing brace that closes nothing

    def block_at(self, offset: int) -> Block | None:
        """The innermost block around an offset that has a name or a type, else any around it."""
        around = [block for block in self.blocks if block.start < offset < block.end]
        named = [block for block in around if block.name or block.type]
        best = named or around
        return best[-1] if best else None


@dataclass
class _Open:
    """A brace that is still open."""

    field: str
    start: int
    block: Block | None


def normalize(text: str) -> str:
    """The text without byte order mark, its lines ended by \\n whatever they were ended by."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def scan(text: str) -> Scan:
    """Goes through a normalized text. Raises nothing."""
    found = Scan()
    stack: list[_Open] = []
    key, previous = "", ""
    key_start: int | None = 0
    for kind, token, offset in tokens(text):
        if found.problem is None:
            found.problem = _token_problem(kind, token, offset, text)
        if kind == "open":
            start = offset if key_start is None else key_start
            stack.append(_Open(key, start, _new_block(found, stack, key, start)))
        elif kind == "close":
            if stack:
                key = _close(stack, offset + 1)
                key_start = None  # `layer: [{..}, {..}]` goes on with the key
            elif found.overclosed is None:
                found.overclosed = offset
        elif kind == "word" and previous != ":":
            key, key_start = token, offset
        elif kind in ("word", "string") and stack and stack[-1].block:
            _note_value(stack[-1].block, key, token, joined=previous == "string")
        previous = token if kind == "other" else kind
    found.unclosed = [(opened.start, opened.field) for opened in stack]
    while stack:
        _close(stack, len(text) + 1)
    return found


def layer_lines(text: str) -> dict[str, list[int]]:
    """Layer name -> the 1-based lines where top-level `layer` or `layers` entries of it start."""
    text = normalize(text)
    lines: dict[str, list[int]] = {}
    line, counted = 1, 0
    for block in scan(text).blocks:
        if block.top_level:
            line += text.count("\n", counted, block.start)
            counted = block.start
            lines.setdefault(block.name, []).append(line)
    return lines


def tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and offset of each token of a normalized text; kinds are the groups of _TOKEN."""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind and kind != "skip":
            yield kind, match.group(), match.start()


def _new_block(found: Scan, stack: list[_Open], key: str, start: int) -> Block | None:
    if key not in ("layer", "layers"):
        return None
    block = Block(key, start, top_level=not stack)
    found.blocks.append(block)
    return block


def _close(stack: list[_Open], end: int) -> str:
    opened = stack.pop()
    if opened.block:
        opened.block.end = end
        outer = stack[-1].block if stack else None
        if outer:  # the first generation: layers { layer { name: "conv1" } bottom: "data" }
            outer.name = outer.name or opened.block.name
            outer.type = outer.type or opened.block.type
    return opened.field


def _note_value(block: Block, key: str, token: str, *, joined: bool) -> None:
    if key not in ("name", "type"):
        return
    value = _unquote(token) if token[0] in "\"'" else token
    current = getattr(block, key)
    if joined:  # adjacent strings are one
        value = current + value
    if joined or not current:
        setattr(block, key, value)


def _unquote(token: str) -> str:
    if "\\" not in token or _string_problem(token, 0):
        return token[1:-1]
    from google.protobuf.text_encoding import CUnescape

    try:
        return CUnescape(token[1:-1]).decode("utf-8", "replace")
    except UnicodeEncodeError:  # a lone surrogate; the parser says so, with its place
        return token[1:-1]


def _token_problem(kind: str, token: str, offset: int, text: str) -> tuple[int, str] | None:
    """What Caffe refuses in a token though Python's parser would take it, or explain it badly."""
    if kind == "string":
        return _string_problem(token, offset)
    if kind == "number" and _ONLY_PYTHON.match(token):
        return offset, f"{token} is not a number"
    if kind == "other" and NOT_UTF8.match(token):
        return offset, "this is not UTF-8; save the file as UTF-8"
    if kind == "other" and token in "\"'":
        line = text[offset:].split("\n", 1)[0]
        hint = "; a backslash escapes what follows it, write paths with '/'" if "\\" in line else ""
        return offset, f"the string has no closing {token} on its line{hint}"
    return None


def _string_problem(token: str, offset: int) -> tuple[int, str] | None:
    at = token.find("\\")
    while at >= 0:
        escape = _ESCAPE.match(token, at)
        if not escape:
            bad = token[at : at + 2]
            return offset + at, f"{bad} is no escape sequence; write paths with '/' instead of '\\'"
        at = token.find("\\", escape.end())
    if not token.isascii() and NOT_UTF8.search(token):
        return offset, "the string is not UTF-8; save the file as UTF-8"
    return None
