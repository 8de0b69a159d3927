"""Parses a text and says what is wrong with it: where, in which layer, and what was meant."""

import difflib
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf import text_format

from ..errors import ModelError
from .fork_fields import fork_of_field, fork_of_type
from .scan import NOT_UTF8, Block, Scan, normalize, scan
from .unknown_fields import UnknownField, find_unknown

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

log = logging.getLogger("pycaffe_lite")

_UNKNOWN_FIELD = re.compile(r'Message type "(\S+)" has no field named "(.+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "(\S+)" has no value (?:named|with number) (.+?)\.?$')
_TWICE = re.compile(r'Message type "\S+" should not have multiple "(\S+)" fields')
_KEY_BEFORE = re.compile(r"([A-Za-z_]\w*)\s*:\s*\Z")
_READ_ON = 'Net(..., unknown_fields="warn") reads on without it'
# What generators of prototxts fill in: ${A} $A $(A) {{ a }} {% a %} %(a)d @A@ <% a %>
_PLACEHOLDER = re.compile(
    r"\$(?:\{+[^{}\n]*\}+|\(\w+\)|\w+)|\{\{[^{}\n]*\}\}|\{%[^\n]*?%\}|%\(\w+\)\w?|@\w+@|<%[^\n]*?%>"
)
# What stands for a value as well, but has other meanings elsewhere: <A> {a} %d __a__ NUM_CLASSES
_PLACEHOLDER_VALUE = re.compile(r"<[A-Za-z_]\w*>|\{\w+\}|%\d*[dfgs]\b|__\w+__|[A-Z][A-Z0-9_]+\b")
_WORDS = {"TRUE", "FALSE", "YES", "NO", "ON", "OFF", "INF", "NAN", "NONE", "NULL"}


def parse(text: str, message_class: type[M], name: str, *, warn_of_unknown: bool = False) -> M:
    """The message in a text; unknown fields are left out with a warning, if so told.

    Raises ModelError.
    """
    text = normalize(text)
    context = _Text(text, message_class, name)
    if context.scan.problem:
        raise context.error(*context.scan.problem)
    if warn_of_unknown:
        context.leave_out_unknown()
    message = message_class()
    try:
        text_format.Parse(context.parsed, message)
    except text_format.ParseError as error:
        raise context.explain(error) from error
    except RecursionError:
        raise context.error(None, "messages are nested too deeply") from None
    missing: list[str] = message.FindInitializationErrors()  # type: ignore[attr-defined]
    if missing:
        raise context.missing(missing)
    for warning in context.warnings():
        log.warning("%s", warning)
    return message


class _Text:
    """A text being parsed: turns what went wrong in it into a ModelError."""

    def __init__(self, text: str, message_class: type["Message"], name: str):
        self.text = text
        self.descriptor: Any = message_class.DESCRIPTOR
        self.name = name
        self.scan: Scan = scan(text)
        self.parsed = text  # of the same lines and columns
        self.left_out: list[UnknownField] = []

    def leave_out_unknown(self) -> None:
        """Take the unknown fields out of what is parsed. Raises ModelError."""
        found = find_unknown(self.text, self.descriptor)
        if found.problem:
            offset, what = found.problem
            raise self.error(offset, f"{what}{self._placeholder(offset, is_value=True)}")
        self.left_out = found.fields
        if found.fields:
            self.parsed = found.cut_from(self.text)

    def warnings(self) -> Iterator[str]:
        """`file:line: layer 'x' (type T): ...` for each field that was left out."""
        line, counted = 1, 0
        for field in self.left_out:
            line += self.text.count("\n", counted, field.start)
            counted = field.start
            block = self.scan.block_at(field.start)
            layer = f"{_layer(block)}: " if block else ""
            fork = _of_fork(field.message, field.name)
            what = f"{field.message} has no field '{field.name}'{fork}: it is left out"
            yield _printable(f"{self.name}:{line}: {layer}{what}")

    def error(self, offset: int | None, what: str, block: Block | None = None) -> ModelError:
        """`failed to parse ... file:line:col: layer 'x' (type 'T'): what`, then the line."""
        where, source = self.name, ""
        if offset is not None:
            block = block or self.scan.block_at(offset)
            line = self.text.count("\n", 0, offset) + 1
            start = self.text.rfind("\n", 0, offset) + 1
            where = f"{self.name}:{line}:{offset - start + 1}"
            source = _excerpt(self.text[start:].split("\n", 1)[0], offset - start)
        layer = f"{_layer(block)}: " if block else ""
        message = f"failed to parse {self.descriptor.name} file {where}: {layer}{what}{source}"
        return ModelError(_printable(message))

    def explain(self, error: text_format.ParseError) -> ModelError:
        """The same error, with more of what a reader needs."""
        line, column = error.GetLine(), error.GetColumn()
        what = re.sub(r"\A\d+:\d+ : ", "", str(error))
        if line is None or column is None:
            return self.error(None, what)
        lines = self.parsed.split("\n")
        line = min(line, len(lines))
        what = what.removeprefix(f"'{lines[line - 1]}': ").removeprefix("'': ")
        offset = min(sum(len(x) + 1 for x in lines[: line - 1]) + column - 1, len(self.text))
        return self.error(offset, self._reword(what, offset))

    def missing(self, paths: list[str]) -> ModelError:
        """Required fields that are not there, as `layer[2].clip_param.max`."""
        what = f"required field {', '.join(paths)} is missing"
        found = re.match(r"(layers?)\[(\d+)\]", paths[0])
        if found:
            field, index = found.group(1), int(found.group(2))
            blocks = [b for b in self.scan.blocks if b.top_level and b.field == field]
            if index < len(blocks):
                return self.error(blocks[index].start, what, blocks[index])
        return self.error(None, what)

    def _reword(self, what: str, offset: int) -> str:
        pool = self.descriptor.file.pool
        if match := _UNKNOWN_FIELD.search(what):
            message, name = pool.FindMessageTypeByName(match.group(1)), match.group(2)
            return f"{_unknown_field(message, name)}{self._read_on(name)}"
        key = self._key_before(offset)
        if match := _UNKNOWN_VALUE.search(what):
            return _unknown_value(pool.FindEnumTypeByName(match.group(1)), key, match.group(2))
        if "does not have extensions" in what:
            return f"{what}{self._read_on('')}"
        if match := _TWICE.search(what):
            return f"field '{match.group(1)}' is given twice, but may be given once only"
        if self.scan.overclosed == offset:
            return "this closing brace closes nothing: there is one too many before or here"
        if what.startswith(('Expected "}"', 'Expected ">"')) and self.scan.unclosed:
            return self._unclosed()
        if self.text.startswith("/", offset):
            return f"{what} Comments start with #"
        if hint := self._placeholder(offset, is_value=False):
            return f"field '{key}': {what}{hint}" if key else f"{what}{hint}"
        if key == "type" and what.startswith("Expected string") and self._in_layer(offset):
            return f"{what}; type is an enum in layers {{}}, a string in layer {{}}: 'Convolution'"
        if what.startswith('Expected "true"'):
            found = self.text[offset : offset + 20].split()
            what = f"expected true or false, found {found[0] if found else 'the end'}"
        return f"field '{key}': {what}{self._placeholder(offset, is_value=True)}" if key else what

    def _placeholder(self, offset: int, *, is_value: bool) -> str:
        """What to say where a template has something to fill in; empty elsewhere."""
        if offset and self.text.startswith(("{{", "{%", "<%"), offset - 1):
            offset -= 1
        match = _PLACEHOLDER.match(self.text, offset)
        if not match and is_value:
            match = _PLACEHOLDER_VALUE.match(self.text, offset)
        if not match or match.group() in _WORDS:
            return ""
        return f"; {match.group()} looks like a placeholder of a template, to be filled in first"

    def _read_on(self, name: str) -> str:
        """The way past an unknown field: a net's, and not what a missing brace brought there."""
        known = self.descriptor.name == "NetParameter" and name not in ("layer", "layers")
        return f"; {_READ_ON}" if known and not name[:1].isdigit() and name.isascii() else ""

    def _in_layer(self, offset: int) -> bool:
        block = self.scan.block_at(offset)
        return block is not None and block.field == "layer"

    def _unclosed(self) -> str:
        start, field = self.scan.unclosed[-1]
        line = self.text.count("\n", 0, start) + 1
        return f"the text ends, but {field} {{ of line {line} is not closed"

    def _key_before(self, offset: int) -> str:
        match = _KEY_BEFORE.search(self.text[max(0, offset - 200) : offset])
        return match.group(1) if match else ""


def _printable(text: str) -> str:
    return NOT_UTF8.sub("\ufffd", text)


def _excerpt(line: str, column: int) -> str:
    """The source line with a mark below the column, on lines of their own."""
    start = max(0, column - 60)
    mark = re.sub(r"[^\t]", " ", line[start:column]) + "^"
    return f"\n    {line[start : start + 100]}\n    {mark}"


def _layer(block: Block) -> str:
    name = f"layer '{block.name}'" if block.name else "layer without a name"
    return f"{name} (type {block.type})" if block.type else name


def _unknown_field(message: Any, name: str) -> str:
    if name[0].isdigit() or not name.isascii():
        return f"expected a field's name, found {name}; a list is written [1, 2]"
    what = f"{message.name} has no field '{name}'"
    if name in ("layer", "layers"):
        return f"{what}; a brace before it is not closed"
    return f"{what}{_of_fork(message.name, name) or _meant(message, name)}"


def _of_fork(message: str, name: str) -> str:
    fork = fork_of_field(message, name)
    return f", which is of the fork {fork}" if fork else ""


def _meant(message: Any, name: str) -> str:
    close = difflib.get_close_matches(name, list(message.fields_by_name), 1, 0.7)
    if close:
        return f"; did you mean '{close[0]}'?"
    homes = [
        field.name
        for field in message.fields
        if field.message_type and name in field.message_type.fields_by_name
    ]
    if homes:
        more = ", ..." if len(homes) > 4 else ""
        return f"; it belongs in {', '.join(homes[:4])}{more}"
    return ", neither in Caffe nor in the forks known here"


def _unknown_value(enum: Any, key: str, value: str) -> str:
    names = list(enum.values_by_name)
    what = f"field '{key}': unknown value {value}"
    if enum.full_name.endswith("V1LayerParameter.LayerType") and value[0] in "\"'":
        return (
            f"{what}: in layers {{}} type is an enum such as CONVOLUTION, without quotes; "
            f"in layer {{}} it is a string such as {value}"
        )
    fork = fork_of_type(value)
    if fork and enum.full_name.endswith("V1LayerParameter.LayerType"):
        return f"{what}, which is of the fork {fork}"
    close = difflib.get_close_matches(value.strip("\"'").upper(), names, 1)
    if close:
        return f"{what}; did you mean {close[0]}?"
    return f"{what}; known: {', '.join(names)}"
