# Sourced by the bars of the GPU pool. pool_start KEY=VALUE... starts a daemon with an HBM tier and
# ends it with the bar; pool_bench NAME ARGUMENTS... runs crumbctl bench --device 0 with its figures
# in NAME.json; pool_figure NAME PHASE FIELD reads one; pool_metric NAME LABEL=VALUE... reads one of the
# daemon's; pool_judge NAME FIGURE OPERATOR BOUND keeps the verdict; pool_verdict TEXT ends the bar.
# Pages: 64 tokens, 80 layers, 8 heads, d = 128 (20 MiB of BF16). Programs are the bundle's,
# build/cuda's or CRUMB_BUILD's.
pool_dir=$(mktemp -d)
pool_pid=''
pool_failed=()
trap pool_end EXIT

pool_end() {
  if [[ -n $pool_pid ]]; then
    kill -TERM "$pool_pid" 2>/dev/null && wait "$pool_pid" 2>/dev/null
  fi
  rm -rf "$pool_dir"
}

pool_program() {
  local here place
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  for place in "$here/../bin/$1" "$here/../../build/cuda/$2/$1" "${CRUMB_BUILD:-/nonexistent}/$2/$1"; do
    if [[ -x $place ]]; then
      echo "$place"
      return
    fi
  done
  echo "skipped: no $1 with CUDA (cmake --preset cuda, then the target crumb_gpu_daemon, where nvcc is)"
  exit 77
}

pool_start() {
  local crumbd key
  crumbd=$(pool_program crumbd cachesvc/server) || { echo "$crumbd"; exit 77; }
  local keys=(data_dir="$pool_dir/data" listen.socket="$pool_dir/s" listen.grpc=off
    listen.http=127.0.0.1:0 pool.dram_bytes=8GiB pool.hbm_bytes=24GiB nvme.bytes=0
    codec.int2=accept codec.windows=off gpu.codec_place=daemon "$@")
  local arguments=()
  mkdir -m 700 "$pool_dir/data"
  for key in "${keys[@]}"; do arguments+=(--set "$key"); done
  "$crumbd" "${arguments[@]}" >"$pool_dir/log" 2>&1 &
  pool_pid=$!
  for _ in $(seq 600); do
    grep -q '^crumbd ready' "$pool_dir/log" && break
    if ! kill -0 "$pool_pid" 2>/dev/null; then
      tail -n 3 "$pool_dir/log"
      exit 1
    fi
    sleep 0.1
  done
  if ! grep -q 'gpu device="GPU' "$pool_dir/log"; then
    grep -o 'gpu device="[^"]*"' "$pool_dir/log" | tail -n 1
    echo "skipped: no GPU that the daemon can use"
    exit 77
  fi
}

pool_bench() {
  local name=$1 crumbctl
  shift
  crumbctl=$(pool_program crumbctl client/cli) || { echo "$crumbctl"; exit 77; }
  if ! "$crumbctl" --server "unix:$pool_dir/s" --json bench --device 0 --spin-us 1000 "$@" \
    >"$pool_dir/$name.json" 2>"$pool_dir/$name.err"; then
    cat "$pool_dir/$name.err" "$pool_dir/$name.json"
    exit 1
  fi
}

pool_figure() {
  python3 -c 'import json, sys
value = json.load(open(sys.argv[1]))[sys.argv[2]]
for part in sys.argv[3].split("."):
    value = value[part]
print(value)' "$pool_dir/$1.json" "$2" "$3"
}

pool_metric() {
  local port
  port=$(grep -o 'http=127.0.0.1:[0-9]*' "$pool_dir/log" | tail -n 1 | grep -o '[0-9]*$')
  python3 -c 'import re, sys, urllib.request
for line in urllib.request.urlopen(sys.argv[1]).read().decode().splitlines():
    name = re.split("[{ ]", line)[0]
    rest = line[len(name):]
    if name == sys.argv[2] and all(label in rest for label in sys.argv[3:]):
        print(float(rest.split()[-1]))
        break
else:
    sys.exit(f"no metric {sys.argv[2:]}")' "http://127.0.0.1:$port/metrics" "$@"
}

pool_judge() {
  if ! awk -v a="$2" -v b="$4" -v op="$3" 'BEGIN { exit !(op == ">=" ? a + 0 >= b + 0 : a + 0 <= b + 0) }'; then
    pool_failed+=("$1 $2, not $3 $4")
  fi
}

pool_verdict() {
  if ((${#pool_failed[@]} > 0)); then printf '%s\n' "${pool_failed[@]}"; fi
  echo "$1"
  ((${#pool_failed[@]} == 0))
}
