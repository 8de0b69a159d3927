"""Compiles the schema into the package: `python proto/compile.py` (needs grpcio-tools).

Writes pycaffe_lite/proto/schema.binpb, a FileDescriptorSet of every .proto file here, and
schema.sha256, a hash of their texts, by which a test sees a stale result without the compiler.
"""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
TARGET = SOURCE.parent / "pycaffe_lite" / "proto"


def source_hash(folder: Path = SOURCE) -> str:
    """Hash of all .proto files in a folder, by name; the same for any newline convention."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.proto")):
        digest.update(path.name.encode() + b"\n")
        digest.update(b"\n".join(path.read_bytes().splitlines()) + b"\n")
    return digest.hexdigest()


def compile_schema(target: Path = TARGET) -> None:
    """Runs protoc. Raises CalledProcessError where the schema is wrong; protoc says what."""
    if importlib.util.find_spec("grpc_tools") is None:
        raise SystemExit("the compiler is missing: pip install grpcio-tools")
    names = [path.name for path in sorted(SOURCE.glob("*.proto"))]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCE}"]
    output = f"--descriptor_set_out={target / 'schema.binpb'}"
    subprocess.run([*protoc, output, *names], check=True)
    (target / "schema.sha256").write_text(source_hash() + "\n", encoding="ascii", newline="\n")


if __name__ == "__main__":
    compile_schema()
