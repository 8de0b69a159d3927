"""Where do batches come from? Databases, images and HDF5, transformed and read ahead."""
