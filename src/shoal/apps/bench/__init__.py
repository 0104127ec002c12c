"""`shoal bench`: Shoal beside its ceilings, measured in one run on one machine.

Every row has the median over several batches, the latencies' p50 and p99, and the ceiling: the
same work without Shoal, in the same run, its batches taken by turns with ours, so that a busy
moment of the machine meets both.
"""
