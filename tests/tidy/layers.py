#!/usr/bin/env python3
"""The dependency table of docs/architecture.md as a test: any other include fails."""
import re
import sys

import tree

ALL = None  # may include everything of ours
LAYERS = {
    "cachesvc/base": [],
    "cachesvc/net": ["cachesvc/base"],
    "cachesvc/cluster": ["cachesvc/base"],
    "gpu/device": ["cachesvc/base"],
    "gpu/codec": ["cachesvc/base", "gpu/device"],
    "gpu/pool": ["cachesvc/base", "gpu/device"],
    "storage/device": ["cachesvc/base"],
    "storage/segment": ["cachesvc/base", "storage/device"],
    "cachesvc/core": ["cachesvc/base", "cachesvc/net", "cachesvc/cluster", "gpu/device",
                      "gpu/codec", "gpu/pool", "storage/device", "storage/segment"],
    "cachesvc/server": ALL,
    "client/include": [],
    "client/src": ["cachesvc/base", "cachesvc/net", "gpu/device", "gpu/codec", "gpu/pool", "client/include", "proto"],
    "client/cli": ["cachesvc/base", "cachesvc/core", "cachesvc/net", "gpu/device", "gpu/codec", "client/include", "client/src",
                   "proto"],
    "client/python": ["client/include"],
    "client/demo": ["cachesvc/base", "gpu/codec", "client/include"],
    "tests": ALL,
}
# Third-party headers and the only files that may include them.
FENCES = [
    (re.compile(r"^(ucp|ucs|uct|ucm)/"), re.compile(r"^cachesvc/net/ucx_|^client/cli/doctor|^tests/conformance/net/ucx_raw_peer")),
    (re.compile(r"^liburing"), re.compile(r"^storage/device/uring_|^client/cli/doctor")),
    (re.compile(r"^(cuda|nv|cub/|cute/|thrust/|cooperative_groups|mma\.h)"),
     re.compile(r"^(gpu/\w+|tests/.*)/cuda_[^/]*\.(cc|cu|cuh)$")),
    (re.compile(r"^(grpc|grpcpp|google/protobuf)/|^crumb/v1/"),
     re.compile(r"^cachesvc/(server|cluster/etcd)/|^client/|^tests/")),
    (re.compile(r"^prometheus/"), re.compile(r"^cachesvc/server/|^tests/")),
    (re.compile(r"^yaml-cpp/"), re.compile(r"^cachesvc/server/|^client/|^tests/")),
    (re.compile(r"^spdlog/"), re.compile(r"^cachesvc/server/|^client/|^tests/")),
]


def layer_of(path):
    parts = path.split("/")
    if parts[0] == "tests":
        return "tests"
    return "/".join(parts[:2])


def main(root):
    problems = []
    for path in tree.files(root):
        name = str(path)
        layer = layer_of(name)
        if layer not in LAYERS:
            problems.append(f"{name}: folder {layer} is not in the table of tests/tidy/layers.py")
            continue
        text = (tree.pathlib.Path(root) / path).read_text()
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line)
            if not match:
                continue
            target = match.group(1)
            where = f"{name}:{number}: includes {target}"
            for fence, allowed in FENCES:
                if fence.search(target) and not allowed.search(name):
                    problems.append(f"{where}, which only {allowed.pattern} may")
            if target.startswith("crumb/") and not target.startswith("crumb/v1/"):
                target = "client/include/" + target
            top = target.split("/")[0]
            if top not in tree.TOP:
                continue
            other = layer_of(target)
            if layer == "tests":
                continue
            if other == "tests":
                problems.append(f"{where}: product code must not include tests")
            elif other == "cachesvc/server" and layer != "cachesvc/server":
                problems.append(f"{where}: nothing includes the server")
            elif other != layer and LAYERS[layer] is not ALL and other not in LAYERS[layer]:
                problems.append(f"{where}, but {layer} may only use {LAYERS[layer]}")
    tree.report("layers", problems)


if __name__ == "__main__":
    main(sys.argv[1])
