#!/usr/bin/env python3
"""Times PyTorch's softmax attention where stage 07 is timed, and appends to a results file.

    scripts/peers.py --commit COMMIT --results FILE

Needs PyTorch and a GPU. As the stages' drivers do: CUDA events, the L2 cache overwritten before
every run, the median of the runs, after some that do not count. The error is that of a sample of
queries against float64 on the same inputs. Each backend of scaled_dot_product_attention is asked
for by name, so that none is silently replaced by another; one that does not take a shape is named,
and left out.
"""

import argparse
import datetime
import json
import math
import statistics
import subprocess
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    print("peers.py: PyTorch is needed", file=sys.stderr)
    sys.exit(2)

BACKENDS = {
    "bf16": {
        "FlashAttention-2": SDPBackend.FLASH_ATTENTION,
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
    },
    "f32": {
        "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    },
}
TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}

# (dtype, causal, (B, H, L, D)), as gpu_session.sh has them.
RUNS = [
    ("bf16", False, (4, 16, 4096, 128)),
    ("bf16", True, (4, 16, 4096, 128)),
    ("bf16", False, (4, 16, 4096, 64)),
    ("bf16", True, (4, 16, 4096, 64)),
    ("bf16", False, (1, 16, 16384, 128)),
    ("bf16", True, (1, 16, 16384, 128)),
    ("bf16", False, (4, 16, 4096, 256)),
    ("f32", False, (4, 16, 4096, 64)),
]


class Stopwatch:
    def __init__(self):
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device="cuda")

    def ms(self, work):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    def samples(self, work, seconds=0.5):
        """As the drivers sample: 5 to 30 times, each the mean of up to 20 runs, for so long that a
        fast kernel too is timed at the clock that it leaves the chip.
        """
        self.ms(work)
        affordable = 1e3 * seconds / self.ms(work)
        count = min(max(int(affordable), 5), 30)
        runs = min(max(int(affordable / count), 1), 20)
        return sorted(statistics.mean(self.ms(work) for _ in range(runs)) for _ in range(count))


def copy_bytes_per_s(stopwatch):
    source = torch.zeros(1 << 32, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    ms = statistics.median(stopwatch.samples(lambda: target.copy_(source)))
    return 2 * source.numel() / ms * 1e3


def errors(q, k, v, o, causal, rows=64):
    """Relative and largest error of some queries of the first and the last head, in float64."""
    length, size = q.shape[2], q.shape[3]
    sample = torch.linspace(0, length - 1, rows, device="cuda").long()
    error = norm = largest = 0.0
    for b, h in ((0, 0), (q.shape[0] - 1, q.shape[1] - 1)):
        scores = q[b, h, sample].double() @ k[b, h].double().T / math.sqrt(size)
        if causal:
            hidden = torch.arange(length, device="cuda")[None, :] > sample[:, None]
            scores = scores.masked_fill(hidden, -math.inf)
        truth = torch.softmax(scores, dim=-1) @ v[b, h].double()
        difference = o[b, h, sample].double() - truth
        error += difference.square().sum().item()
        norm += truth.square().sum().item()
        largest = max(largest, difference.abs().max().item())
    return math.sqrt(error / norm), largest


def query(field):
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def rounded(value):
    return float(f"{value:.6g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--commit", required=True, help="of this script")
    parser.add_argument("--results", required=True, metavar="FILE", help="is appended to")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("peers.py: PyTorch sees no GPU", file=sys.stderr)
        sys.exit(2)

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    stopwatch = Stopwatch()
    copy_rate = copy_bytes_per_s(stopwatch)
    major, minor = torch.cuda.get_device_capability()
    where = {
        "copy_gb_per_s": rounded(copy_rate / 1e9),
        "fma_tflop_per_s": None,
        "mma_tflop_per_s": None,
        "predicted_ms": None,
        "device": torch.cuda.get_device_name(),
        "sm": f"{major}.{minor}",
        "sm_clock_mhz": int(query("clocks.max.sm")),
        "memory_clock_mhz": int(query("clocks.max.mem")),
        "driver": query("driver_version"),
        "toolkit": f"{torch.version.cuda}, PyTorch {torch.__version__}",
        "commit": arguments.commit,
    }
    for dtype, causal, (B, H, L, D) in RUNS:
        q, k, v = (torch.randn(B, H, L, D, device="cuda", dtype=TYPES[dtype]) for _ in range(3))
        for name, backend in BACKENDS[dtype].items():

            def run():
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

            with sdpa_kernel(backend):
                try:
                    o = run()
                except RuntimeError as error:
                    print(f"not run: {name} at {B},{H},{L},{D} {dtype}: {error}".split("\n")[0])
                    continue
                samples = stopwatch.samples(run)
            rel, largest = errors(q, k, v, o, causal)
            median = statistics.median(samples)
            moved = 4 * B * H * L * D * q.element_size()
            flops = 4.0 * B * H * L * L * D / (2 if causal else 1)
            record = {
                "schema": 1,
                "stage": "PyTorch",
                "kernel": name,
                "picked": False,
                "baseline": "",
                "speedup": None,
                "operator": "softmax attention",
                "inputs": "causal" if causal else "full",
                "shape": {"B": B, "H": H, "L": L, "E": D, "M": D},
                "dtype": dtype,
                "median_ms": rounded(median),
                "min_ms": rounded(samples[0]),
                "max_ms": rounded(samples[-1]),
                "samples": len(samples),
                "bytes": float(moved),
                "flops": flops,
                "gb_per_s": rounded(moved / median / 1e6),
                "tflop_per_s": rounded(flops / median / 1e9),
                "rel_error": rounded(rel),
                "max_abs_error": rounded(largest),
                **where,
                "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            with open(arguments.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(
                f"{name:18} {B},{H},{L},{D} {dtype} {record['inputs']:6} {median:.4g} ms, "
                f"{record['tflop_per_s']:.4g} TFLOP/s, relative error {rel:.2g}"
            )


if __name__ == "__main__":
    main()
