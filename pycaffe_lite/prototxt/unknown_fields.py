"""Finds the fields of a text that its schema does not have, so that the rest can be read."""

import re
from dataclasses import dataclass, field
from typing import Any

from .scan import tokens

_OPEN = {"{": "}", "<": ">"}


@dataclass(frozen=True)
class UnknownField:
    """A field that is in no schema here, and where it stands: from its name to past its value."""

    name: str
    message: str
    start: int
    end: int


@dataclass
class Unknown:
    """What one pass over a text found. Offsets count characters."""

    fields: list[UnknownField] = field(default_factory=list)  # the outermost ones, in order
    problem: tuple[int, str] | None = None  # an unknown field without a proper value: offset, what

    def cut_from(self, text: str) -> str:
        """The text with blanks in the place of the fields: what is left keeps line and column."""
        parts, done = [], 0
        for unknown in self.fields:
            parts += [text[done : unknown.start]]
            parts += [re.sub(r"[^\n]", " ", text[unknown.start : unknown.end])]
            done = unknown.end
        return "".join([*parts, text[done:]])


def find_unknown(text: str, descriptor: Any) -> Unknown:
    """Goes through a normalized text with the message's descriptor, without recursion.

    Ends where the known part of the text is malformed: the parser says why.
    """
    reader, found = _Reader(text), Unknown()
    opened = [_Message(descriptor, "", in_list=False)]
    try:
        while _step(reader, opened, found):
            pass
    except _MalformedError as error:
        found.problem = error.problem
    return found


class _MalformedError(Exception):
    """The value of an unknown field is none."""

    def __init__(self, offset: int, what: str):
        super().__init__(what)
        self.problem = offset, what


@dataclass
class _Message:
    """A message that is still open."""

    descriptor: Any
    closer: str
    in_list: bool  # an element of `layer: [{..}, {..}]`


def _step(reader: "_Reader", opened: list[_Message], found: Unknown) -> bool:
    """Past one field's name and scalar value, or one brace; False at the end of what is known."""
    inner = opened[-1]
    if inner.closer and reader.take(inner.closer):
        opened.pop()
        return _after_message(reader, opened, inner)
    start = reader.offset
    name = reader.name()
    if not name:
        return False
    known = inner.descriptor.fields_by_name.get(name)
    if known is None:
        if name in ("layer", "layers"):
            return False  # a brace before it is missing: no layer shall be lost
        reader.skip_value(name)
        reader.no_separator(name)
        found.fields.append(UnknownField(name, inner.descriptor.name, start, reader.end))
    elif known.message_type:
        return _enter(reader, opened, known.message_type)
    else:
        try:
            reader.skip_value(name)
        except _MalformedError:
            return False
    return True


def _enter(reader: "_Reader", opened: list[_Message], descriptor: Any) -> bool:
    in_list = reader.take(":") and reader.take("[")
    if in_list and reader.take("]"):
        reader.separator()
        return True
    return _open(reader, opened, descriptor, in_list)


def _open(reader: "_Reader", opened: list[_Message], descriptor: Any, in_list: bool) -> bool:
    closer = _OPEN.get(reader.token, "")
    if closer:
        reader.next()
        opened.append(_Message(descriptor, closer, in_list))
    return bool(closer)


def _after_message(reader: "_Reader", opened: list[_Message], closed: _Message) -> bool:
    if closed.in_list:
        if reader.take(","):
            return _open(reader, opened, closed.descriptor, in_list=True)
        if not reader.take("]"):
            return False
    reader.separator()
    return True


class _Reader:
    """The tokens of a text, one after the other."""

    def __init__(self, text: str):
        self._tokens = tokens(text)
        self._size = len(text)
        self.end = 0  # offset after the token before this one
        self.group, self.token, self.offset = "end", "", 0
        self.next()
        self.end = 0

    def next(self) -> None:
        """On to the next token; at the end there is one without characters."""
        self.end = self.offset + len(self.token)
        self.group, self.token, self.offset = next(self._tokens, ("end", "", self._size))

    def take(self, token: str) -> bool:
        """Past this token, if it is there."""
        if self.token != token:
            return False
        self.next()
        return True

    def separator(self) -> None:
        """Past the comma or semicolon that may end a field."""
        _ = self.take(",") or self.take(";")

    def no_separator(self, name: str) -> None:
        """Refuse a second one after `name`: without the field, the parser would not see it."""
        if self.token in (",", ";"):
            raise self._malformed(name, "expected one separator after it")

    def name(self) -> str:
        """Past a field's name, `word` or `[an.extension]`; empty where there is none."""
        name = self.token
        if self.group == "word":
            self.next()
            return name
        if not self.take("["):
            return ""
        while self.group == "word" or self.token in (".", "/"):
            name += self.token
            self.next()
        return f"{name}]" if self.take("]") else ""

    def skip_value(self, name: str) -> None:
        """Past the value of any kind of the field `name`. Raises _MalformedError."""
        closers: list[str] = []
        self._begin(closers, name)
        while closers:
            if self.take(closers[-1]):
                closers.pop()
                if not closers or closers[-1] != "]":
                    self.separator()
            elif closers[-1] == "]":
                if not self.take(","):
                    raise self._malformed(name, "expected , or ]")
                self._element(closers, name)
            elif self.name():
                self._begin(closers, name)
            else:
                raise self._malformed(name, f"expected a field's name or {closers[-1]}")

    def _begin(self, closers: list[str], name: str) -> None:
        colon = self.take(":")
        if self.token in _OPEN:
            closers.append(_OPEN[self.token])
            self.next()
        elif not colon:
            raise self._malformed(name, "expected : or {")
        elif self.take("["):
            closers.append("]")
            if self.token != "]":
                self._element(closers, name)
        else:
            self._scalar(name)
            self.separator()

    def _element(self, closers: list[str], name: str) -> None:
        if self.token in _OPEN:
            closers.append(_OPEN[self.token])
            self.next()
        else:
            self._scalar(name)

    def _scalar(self, name: str) -> None:
        if self.group == "string":
            while self.group == "string":  # adjacent ones are one
                self.next()
            return
        if self.token == "-":  # -inf
            self.next()
        if self.group not in ("word", "number"):
            raise self._malformed(name, "expected a value")
        self.next()

    def _malformed(self, name: str, what: str) -> _MalformedError:
        there = self.token or "the end"
        return _MalformedError(self.offset, f"unknown field '{name}': {what}, found {there}")
