"""What do training logs say? Read from every Caffe's and from ours, as tables and curves."""
