"""us for each layer's call: a CUDA graph of many calls on different slots, replayed."""

import statistics

import torch

WARM_REPLAYS = 2


def measure(job, replays):
    """(median us, spread) over `replays` replays; spread is that of the middle half of them, relative to the median."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls = job.enqueue()
    for _ in range(WARM_REPLAYS):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    times = sorted(1e3 * a.elapsed_time(b) / calls for a, b in zip(marks, marks[1:]))
    del graph
    median = statistics.median(times)
    quarter = len(times) // 4
    return median, (times[-1 - quarter] - times[quarter]) / median
