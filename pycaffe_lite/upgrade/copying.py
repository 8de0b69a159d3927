"""Copies of messages, whole or in part."""

from __future__ import annotations

from typing import Any


def copy(message: Any) -> Any:
    """An equal message."""
    new = type(message)()
    new.CopyFrom(message)
    return new


def copy_without(message: Any, *names: str) -> Any:
    """A copy without some of its fields, which are not copied in between: they may be large."""
    new = type(message)()
    for field, value in message.ListFields():
        if field.name not in names:
            put(new, field.name, value)
    return new


def put(message: Any, name: str, value: Any) -> None:
    """Give a field a value; a message is copied, a repeated field gets one more or all of many."""
    target = getattr(message, name)
    if hasattr(target, "SetInParent"):
        target.SetInParent()  # an empty message counts as given, too
        target.MergeFrom(value)
    elif hasattr(target, "MergeFrom"):
        target.extend(value if hasattr(value, "MergeFrom") else [value])
    else:
        setattr(message, name, value)
