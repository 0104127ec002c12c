"""Benchmark suites, one module each."""

SUITES = {  # by the name that `shoal bench` knows; their modules need torch
    "wire": "wire",
    "saturation": "saturation",
    "dense": "dense",
    "sparse": "sparse",
    "train": "training",
    "allreduce": "allreduce",
    "word2vec": "word2vec",
    "ctr": "ctr",
    "follower": "follower",
    "moving": "rebalance",
    "stragglers": "stragglers",
    "opening": "opening",
    "codecs": "codecs",
}
