"""What can go wrong: every exception the package raises on purpose."""

from collections.abc import Iterable


class ModelError(ValueError):
    """A model, or an argument given to one, is wrong; the text names the layer and the numbers.

    `layer` is the name of the layer at fault where whoever raises cannot tell its file and line.
    """

    def __init__(self, message: str, layer: str | None = None) -> None:
        super().__init__(message)
        self.layer = layer


class WeightsError(ModelError):
    """Weights do not fit the net they are loaded into, or their file is damaged."""


class MissingFileError(RuntimeError, FileNotFoundError):
    """A file is not there: RuntimeError, as pycaffe raises, and FileNotFoundError in one."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the known name nearest to `name` whatever the case, or nothing."""
    import difflib  # 4 ms, and needed for errors only

    by_letters = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), by_letters, n=1)
    return f"; did you mean {by_letters[near[0]]!r}?" if near else ""
