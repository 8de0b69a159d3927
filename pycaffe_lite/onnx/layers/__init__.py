"""The exporters of layer types, one file a family; the registry finds the files by scanning."""
