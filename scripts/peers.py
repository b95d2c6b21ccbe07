#!/usr/bin/env python3
"""Times other libraries' kernels where stages 05 to 07 are timed, and appends to a results file.

    scripts/peers.py --commit COMMIT --results FILE [--library NAME]

PyTorch's softmax attention, and flash-linear-attention's gated linear attention and RWKV-6, each
unless --library names the other. Needs PyTorch, a GPU, and what it is to time. As the stages'
drivers do: CUDA events, the L2 cache overwritten before every run, the median of the runs, after
some that do not count. The error is that of two heads against float64 on the same inputs. Each
kernel is asked for by name, so that none is silently replaced by another; what does not take a
shape, or is not installed, is named, and left out.
"""

import argparse
import dataclasses
import datetime
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    print("peers.py: PyTorch is needed", file=sys.stderr)
    sys.exit(2)

TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}

# --- Softmax attention: PyTorch -------------------------------------------------------------------

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

# (dtype, causal, (B, H, L, D)), as gpu_session.sh has them.
SOFTMAX = [
    ("bf16", False, (4, 16, 4096, 128)),
    ("bf16", True, (4, 16, 4096, 128)),
    ("bf16", False, (4, 16, 4096, 64)),
    ("bf16", True, (4, 16, 4096, 64)),
    ("bf16", False, (1, 16, 16384, 128)),
    ("bf16", True, (1, 16, 16384, 128)),
    ("bf16", False, (4, 16, 4096, 256)),
    ("f32", False, (4, 16, 4096, 64)),
]

# --- Linear attention: flash-linear-attention -----------------------------------------------------

# (operator, inputs, (B, H, L, D)), bf16, as gpu_session.sh has them. Its kernels are tuned anew for
# each head size, for minutes.
LINEAR = [
    ("gated linear attention", "mild", (8, 32, 4096, 64)),
    ("gated linear attention", "strong", (8, 32, 4096, 64)),
    ("gated linear attention", "exponential", (8, 32, 4096, 64)),
    ("gated linear attention", "mild", (8, 8, 1024, 64)),
    ("RWKV-6", "exponential", (8, 32, 4096, 64)),
    ("RWKV-6", "exponential", (8, 8, 1024, 64)),
    ("gated linear attention", "mild", (1, 96, 8192, 128)),
    ("gated linear attention", "mild", (4, 64, 4096, 128)),
    ("gated linear attention", "mild", (2, 16, 16384, 128)),
    ("RWKV-6", "exponential", (4, 64, 4096, 128)),
    ("RWKV-6", "exponential", (1, 96, 8192, 128)),
]

# Logarithmic gates from normal numbers.
GATES = {
    "mild": lambda x: torch.nn.functional.logsigmoid(x) / 16,
    "strong": torch.nn.functional.logsigmoid,
    "exponential": lambda x: -torch.exp(x),
}

# --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Peer:
    """A library's kernel on inputs of its own."""

    library: str
    version: str
    kernel: str
    operator: str
    inputs: str
    dtype: str
    shape: tuple  # B, H, L, D: the head sizes are equal
    flops: float  # as the drivers count them
    operands: int  # of the size of q, the output included
    run: Callable  # its output
    errors: Callable  # of an output: relative, largest


def errors_of(output, truth):
    difference = output.double() - truth
    relative = difference.norm() / truth.norm()
    return relative.item(), difference.abs().max().item()


def softmax_peers():
    for dtype, causal, shape in SOFTMAX:
        B, H, L, D = shape
        q, k, v = (torch.randn(*shape, device="cuda", dtype=TYPES[dtype]) for _ in range(3))
        sample = torch.linspace(0, L - 1, 64, device="cuda").long()

        def rows_of_two_heads(x):
            return torch.stack([x[0, 0], x[-1, -1]])

        def errors(o):
            of = rows_of_two_heads(q)[:, sample].double()
            scores = of @ rows_of_two_heads(k).double().mT / math.sqrt(D)
            if causal:
                hidden = torch.arange(L, device="cuda")[None, :] > sample[:, None]
                scores = scores.masked_fill(hidden, -math.inf)
            truth = torch.softmax(scores, dim=-1) @ rows_of_two_heads(v).double()
            return errors_of(rows_of_two_heads(o)[:, sample], truth)

        for name, backend in BACKENDS[dtype].items():

            def run():
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=causal
                    )

            yield Peer(
                library="PyTorch",
                version=torch.__version__,
                kernel=name,
                operator="softmax attention",
                inputs="causal" if causal else "full",
                dtype=dtype,
                shape=shape,
                flops=4.0 * B * H * L * L * D / (2 if causal else 1),
                operands=4,
                run=run,
                errors=errors,
            )


def recurrence(q, k, v, gates, bonus):
    """In float64, of heads [heads, L, D]; with a bonus [heads, D] that of RWKV-6."""
    q, k, v, decays = q.double(), k.double(), v.double(), gates.double().exp()
    S = torch.zeros(q.shape[0], q.shape[2], v.shape[2], device="cuda", dtype=torch.float64)
    rows = []
    for i in range(q.shape[1]):
        added = k[:, i, :, None] * v[:, i, None, :]
        before, S = S, S * decays[:, i, :, None] + added
        read = S if bonus is None else before + bonus.double()[:, :, None] * added
        rows.append((q[:, i, None, :] @ read)[:, 0])
    return torch.stack(rows, dim=1)


def linear_peers():
    try:
        import fla
        from fla.ops.gla import chunk_gla
        from fla.ops.rwkv6 import chunk_rwkv6, fused_recurrent_rwkv6
    except ImportError as error:
        print(f"not run: flash-linear-attention: {error}")
        return
    for operator, inputs, shape in LINEAR:
        B, H, L, D = shape
        # Its layout is [B, L, H, D].
        q, k, v, x = (torch.randn(B, L, H, D, device="cuda", dtype=TYPES["bf16"]) for _ in range(4))
        gates = GATES[inputs](x.float()).to(TYPES["bf16"])
        gla = operator == "gated linear attention"
        bonus = None if gla else torch.randn(H, D, device="cuda", dtype=TYPES["bf16"])
        kernels = {"chunk_gla": chunk_gla}
        if not gla:
            kernels = {
                "chunk_rwkv6": chunk_rwkv6,
                "fused_recurrent_rwkv6": fused_recurrent_rwkv6,
            }

        def two_heads(x):
            return torch.stack([x[0, :, 0], x[-1, :, -1]])

        def errors(o):
            of = None if bonus is None else torch.stack([bonus[0], bonus[-1]])
            return errors_of(
                two_heads(o), recurrence(*(two_heads(of_all) for of_all in (q, k, v, gates)), of)
            )

        for name, kernel in kernels.items():

            def run():
                operands = (q, k, v, gates) if bonus is None else (q, k, v, gates, bonus)
                return kernel(*operands, scale=1.0)[0]

            yield Peer(
                library="flash-linear-attention",
                version=fla.__version__,
                kernel=name,
                operator=operator,
                inputs=inputs,
                dtype="bf16",
                shape=shape,
                flops=B * H * L * (5.0 * D * D + (0.0 if gla else 5.0 * D)),
                operands=5,
                run=run,
                errors=errors,
            )


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


def query(field):
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def environment(stopwatch, commit):
    major, minor = torch.cuda.get_device_capability()
    return {
        "copy_gb_per_s": rounded(copy_bytes_per_s(stopwatch) / 1e9),
        "fma_tflop_per_s": None,
        "mma_tflop_per_s": None,
        "predicted_ms": None,
        "device": torch.cuda.get_device_name(),
        "sm": f"{major}.{minor}",
        "sm_clock_mhz": int(query("clocks.max.sm")),
        "memory_clock_mhz": int(query("clocks.max.mem")),
        "driver": query("driver_version"),
        "commit": commit,
    }


def rounded(value):
    return float(f"{value:.6g}")


def record_of(peer, samples, errors, where):
    B, H, L, D = peer.shape
    median = statistics.median(samples)
    moved = peer.operands * B * H * L * D * TYPES[peer.dtype].itemsize
    return {
        "schema": 1,
        "stage": peer.library,
        "kernel": peer.kernel,
        "picked": False,
        "baseline": "",
        "speedup": None,
        "operator": peer.operator,
        "inputs": peer.inputs,
        "shape": {"B": B, "H": H, "L": L, "E": D, "M": D},
        "dtype": peer.dtype,
        "median_ms": rounded(median),
        "min_ms": rounded(samples[0]),
        "max_ms": rounded(samples[-1]),
        "samples": len(samples),
        "bytes": float(moved),
        "flops": peer.flops,
        "gb_per_s": rounded(moved / median / 1e6),
        "tflop_per_s": rounded(peer.flops / median / 1e9),
        "rel_error": rounded(errors[0]),
        "max_abs_error": rounded(errors[1]),
        **where,
        "toolkit": f"{torch.version.cuda}, {peer.library} {peer.version}",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def main():
    libraries = {"PyTorch": softmax_peers, "flash-linear-attention": linear_peers}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--commit", required=True, help="of this script")
    parser.add_argument("--results", required=True, metavar="FILE", help="is appended to")
    parser.add_argument("--library", choices=libraries, help="only this one")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("peers.py: PyTorch sees no GPU", file=sys.stderr)
        sys.exit(2)

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    stopwatch = Stopwatch()
    where = environment(stopwatch, arguments.commit)
    for library, peers in libraries.items():
        if arguments.library not in (None, library):
            continue
        for peer in peers():
            shape = ",".join(map(str, peer.shape))
            try:
                o = peer.run()
                samples = stopwatch.samples(peer.run)
            except RuntimeError as error:
                first_line = str(error).split("\n")[0]
                print(f"not run: {peer.kernel} at {shape} {peer.dtype}: {first_line}")
                continue
            record = record_of(peer, samples, peer.errors(o), where)
            with open(arguments.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(
                f"{peer.kernel:22} {shape} {peer.dtype} {peer.inputs:11} "
                f"{record['median_ms']:.4g} ms, {record['tflop_per_s']:.4g} TFLOP/s, "
                f"relative error {record['rel_error']:.2g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
