"""Measures crumbkv beside `crumbctl bench`, in turns, against one private daemon. See ../python_batch_get."""
import json
import random
import statistics
import subprocess
import sys
import time

import crumbkv

PAGES, BYTES, KEYS, ROUNDS, SECONDS = 32, 256 << 10, 1024, 7, 2
SHARE_MIN, OVERHEAD_US_MAX = 0.80, 30.0


def bench(crumbctl, server, *arguments):
    command = [crumbctl, "--server", server, "--json", "bench", *arguments, "--transport", "shm", "--depth", "1",
               "--seconds", str(SECONDS)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def seconds_of(call, budget):
    times, end = [], time.perf_counter() + budget
    while time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def main(crumbctl):
    with crumbkv.open(start=True, pool="1GiB", deadline=20.0) as client:
        server = client._daemon.server
        layout = client.register_layout(name="bar", model="bar", revision="1", kv_heads=8, head_dim=128, layers=1,
                                        page_tokens=64, codec="raw")
        assert layout.page_bytes == BYTES
        region = client.lend(layout, client.alloc(PAGES * BYTES))
        keys = [f"bar/{i}" for i in range(KEYS)]
        for at in range(0, KEYS, PAGES):
            client.put(region, keys[at:at + PAGES]).raise_for_status()
        chance = random.Random(1)

        def get():
            if not client.get(region, chance.choices(keys, k=PAGES)).ok:
                raise SystemExit("a get missed")

        mine, theirs, mine_us, theirs_us = [], [], [], []
        for number in range(ROUNDS):
            cpp = bench(crumbctl, server, "get", "--value-bytes", str(BYTES), "--batch", str(PAGES), "--keys", str(KEYS))
            times = seconds_of(get, SECONDS)
            mine.append(len(times) * PAGES * BYTES / sum(times) / 1e9)
            theirs.append(rate_of(cpp))
            look = bench(crumbctl, server, "lookup", "--value-bytes", str(BYTES), "--batch", "1", "--keys", str(PAGES))
            times = seconds_of(lambda: client.lookup(layout, keys[:1]), SECONDS)
            mine_us.append(statistics.median(times) * 1e6)
            theirs_us.append(p50_of(look))
            print(f"round {number}: Python {mine[-1]:.2f} GB/s, C++ {theirs[-1]:.2f} GB/s; "
                  f"look-up p50 {mine_us[-1]:.1f} us, C++ {theirs_us[-1]:.1f} us", flush=True)
        share = statistics.median(a / b for a, b in zip(mine, theirs))
        extra = statistics.median(a - b for a, b in zip(mine_us, theirs_us))
        print(f"batch get of {PAGES} x 256 KiB: {share:.0%} of C++ (at least {SHARE_MIN:.0%}), medians "
              f"{statistics.median(mine):.2f} and {statistics.median(theirs):.2f} GB/s; a call {extra:.1f} us over C++ "
              f"(at most {OVERHEAD_US_MAX:.0f})")
        sys.exit(not (share >= SHARE_MIN and extra <= OVERHEAD_US_MAX))


def rate_of(report):
    return report["bytes_per_second"] / 1e9


def p50_of(report):
    return report["p50_us"]


if __name__ == "__main__":
    main(sys.argv[1])
