"""Caffe's messages, built at run time from the compiled schema; see proto/compile.py.

They live in a descriptor pool of their own. The process-wide pool would refuse a second file named
caffe.proto or a second message caffe.NetParameter, which converters and other ports bring along.
Nothing here depends on the version of protobuf that the schema was compiled with.

Importing protobuf takes far longer than building the messages, so both wait for the first use.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SCHEMA = Path(__file__).with_name("schema.binpb")
_pool: Any = None
_lock = threading.Lock()


def lookup(module: dict[str, Any], file_name: str, name: str) -> Any:
    """What a module that stands for a .proto file answers when asked for a name.

    `module` is its globals(), filled at the first call. Raises AttributeError.
    """
    if name == "__all__":
        return public_names(module, file_name)
    # Python asks modules for more such names (__path__, __wrapped__); they need no messages.
    if not name.startswith("__"):
        _fill(module, file_name)
        if name in module:
            return module[name]
    raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")


def public_names(module: dict[str, Any], file_name: str) -> list[str]:
    """DESCRIPTOR, messages, top-level enums and their values, sorted."""
    return sorted(_fill(module, file_name))


def _fill(module: dict[str, Any], file_name: str) -> set[str]:
    if "_names" not in module:
        members = _members(file_name, module["__name__"])
        module.update(members, _names=set(members))
    names: set[str] = module["_names"]
    return names


def _members(file_name: str, module_name: str) -> dict[str, Any]:
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
    from google.protobuf.message_factory import GetMessageClass

    descriptor = _schema_pool().FindFileByName(file_name)
    members: dict[str, Any] = {"DESCRIPTOR": descriptor}
    for name, enum in descriptor.enum_types_by_name.items():
        members[name] = EnumTypeWrapper(enum)
        members.update((value.name, value.number) for value in enum.values)
    for name, message in descriptor.message_types_by_name.items():
        members[name] = GetMessageClass(message)
        members[name].__module__ = module_name  # pickle looks the class up there
    return members


def _schema_pool() -> Any:
    global _pool
    with _lock:  # two pools would mean two classes of each name
        if _pool is None:
            from google.protobuf.descriptor_pool import DescriptorPool

            pool = DescriptorPool()
            for file in _split_files(_SCHEMA.read_bytes()):
                pool.AddSerializedFile(file)
            _pool = pool
    return _pool


def _split_files(descriptor_set: bytes) -> Iterator[bytes]:
    """The serialized files of a FileDescriptorSet: records of field 1, one after the other.

    Done by hand because importing descriptor_pb2 would cost more than building all messages.
    """
    position = 0
    while position < len(descriptor_set):
        if descriptor_set[position] != 0x0A:
            raise ValueError(f"{_SCHEMA} is damaged: byte {position} starts no file record")
        position += 1
        size = shift = 0
        while True:
            byte = descriptor_set[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield descriptor_set[position : position + size]
        position += size
