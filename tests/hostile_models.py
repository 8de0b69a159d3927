"""Small models made wrong in small ways: tokens, numbers, fields and bytes changed at random."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np

from pycaffe_lite.proto import caffe_pb2

_TOKEN = re.compile(r'"[^"]*"|[-+\w.]+|[^\w\s]|\s+')
# fmt: off
_NUMBERS = [
    "2147483648", "2147483647", "-2147483648", "4294967295", "18446744073709551615",
    "9223372036854775807", "1e38", "1e300", "1e-38", "nan", "inf", "-inf", "-1", "-3", "0", "0.5",
    "-0.5", "1", "2", "3", "4", "5", "7", "10", "33", "1000", "65536", "100000",
]
# fmt: on
_MESSAGES = {
    field.name: field.message_type
    for field in caffe_pb2.LayerParameter.DESCRIPTOR.fields
    if field.message_type
}


def recorded_nets() -> list[str]:
    """The prototxts of all nets recorded from Caffe and its forks."""
    golden = Path(__file__).parent / "golden"
    paths = sorted([*golden.glob("layers/*.npz"), *golden.glob("forks/*.npz")])
    nets = []
    for path in paths:
        with np.load(path) as case:
            nets.append(str(case["net"]))
    return nets


class Mutator:
    """Changes texts and bytes as its random numbers say; the same numbers, the same changes."""

    def __init__(self, draw: random.Random, words: list[str]) -> None:
        self.draw, self.words = draw, words

    def text(self, text: str) -> str:
        """One to three changes of tokens, most of them of numbers."""
        tokens = _TOKEN.findall(text)
        for _ in range(self.draw.choice((1, 1, 1, 2, 3))):
            changes = (self._number, self._field, self._word, self._cut, self._repeat)
            self.draw.choices(changes, (10, 6, 2, 1, 1))[0](tokens)
        return "".join(tokens)

    def bytes(self, data: bytes) -> bytes:
        """One to four bytes or stretches changed, cut out or put in."""
        changed = bytearray(data)
        for _ in range(self.draw.choice((1, 1, 2, 4))):
            if not changed:
                break
            at, kind = self.draw.randrange(len(changed)), self.draw.randrange(5)
            if kind == 0:
                changed[at] = self.draw.randrange(256)
            elif kind == 1:
                changed[at] ^= 1 << self.draw.randrange(8)
            elif kind == 2:
                del changed[at : at + self.draw.choice((1, 4, 100))]
            elif kind == 3:
                changed[at:at] = self.draw.choice((b"\xff", b"\x7f" * 4, b"\xff" * 9, b"\0" * 4))
            else:
                del changed[at:]
        return bytes(changed)

    def _somewhere(self, tokens: list[str], pattern: str) -> int | None:
        found = [k for k, token in enumerate(tokens) if re.match(pattern, token)]
        return self.draw.choice(found) if found else None

    def _number(self, tokens: list[str]) -> None:
        at = self._somewhere(tokens, r"[-+.]?\d")
        if at is not None:
            tokens[at] = self.draw.choice(_NUMBERS)

    def _word(self, tokens: list[str]) -> None:
        at = self._somewhere(tokens, r'[A-Za-z_"]')
        if at is not None:
            tokens[at] = self.draw.choice(self.words)

    def _field(self, tokens: list[str]) -> None:
        """A field more in a layer's own message."""
        at = self._somewhere(tokens, rf"({'|'.join(_MESSAGES)})$")
        if at is None or "{" not in tokens[at:]:
            return
        field = self.draw.choice(_MESSAGES[tokens[at]].fields or [None])
        if field is None or field.message_type:
            return
        value = self.draw.choice(_NUMBERS)
        if field.enum_type:
            value = self.draw.choice(field.enum_type.values).name
        elif field.type == field.TYPE_BOOL:
            value = self.draw.choice(("true", "false"))
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            value = self.draw.choice(('"x"', '""'))
        tokens.insert(tokens.index("{", at) + 1, f" {field.name}: {value} ")

    def _cut(self, tokens: list[str]) -> None:
        at = self.draw.randrange(len(tokens) + 1)
        del tokens[at : at + self.draw.randrange(1, 12)]

    def _repeat(self, tokens: list[str]) -> None:
        at = self.draw.randrange(len(tokens) + 1)
        tokens[at:at] = tokens[at : at + self.draw.randrange(1, 20)]


def words_of(texts: list[str]) -> list[str]:
    """All names and strings in prototxts."""
    tokens = {token for text in texts for token in _TOKEN.findall(text)}
    return sorted(token for token in tokens if re.match(r'[A-Za-z_"]', token))
