"""One module per library: its tasks, and how it sends them; each runs in its own environment.

Each has what `bench.sender.Peer` says. ``BENCH_URL`` says where the broker is, ``BENCH_STORED``
whether results are stored, ``BENCH_VARIANT`` which configuration it is.
"""
