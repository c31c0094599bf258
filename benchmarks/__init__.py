"""Speed and memory of qmaps beside its peers; see `benchmarks.__main__`."""
