"""What can go wrong: every exception the package raises on purpose."""


class ModelError(ValueError):
    """A model, or an argument given to one, is wrong; the text names the layer and the numbers."""


class WeightsError(ModelError):
    """Weights do not fit the net they are loaded into, or their file is damaged."""


class MissingFileError(RuntimeError, FileNotFoundError):
    """A file is not there: pycaffe raised RuntimeError, Python says FileNotFoundError; it is both."""
