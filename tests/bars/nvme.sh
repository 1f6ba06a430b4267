# Shared by the bars of the NVMe tier (nvme_*): a log and a file for fio, of the same size on the same
# file system, both written whole beforehand; rounds that alternate between the two; medians. Files go
# to TMPDIR or the build folder. Sourced.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${CRUMB_BUILD:-$root/build/release}
program=$build/tests/bench/bench_nvme
gib=${NVME_GIB:-1} depth=32 rounds=${NVME_ROUNDS:-7}

nvme_start() {
  if [[ ! -x $program ]]; then
    echo "no $program: build the target bench_nvme first" >&2
    exit 1
  fi
  if ! command -v fio >/dev/null; then
    echo "skipped: fio is not installed"
    exit 77
  fi
  folder=$(mktemp -d "${TMPDIR:-$build}/crumb-nvme-XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  local need_kib=$(((2 * gib + 1) * 1024 * 1024)) free_kib
  free_kib=$(df --output=avail -k "$folder" | tail -n 1)
  if ((free_kib < need_kib)); then
    echo "skipped: $folder has only $free_kib KiB free, $need_kib are needed"
    exit 77
  fi
}

# A log of pages of $1 KiB at $folder/log, and $folder/fio as large.
nvme_fill() {
  rm -f "$folder/log" "$folder/fio"
  local code=0
  "$program" fill "$folder/log" --gib "$gib" --page-kib "$1" 2>/dev/null || code=$?
  if [[ $code -eq 77 ]]; then
    echo "skipped: the file system under $folder refuses O_DIRECT (set TMPDIR to a disk)"
    exit 77
  fi
  [[ $code -eq 0 ]] || exit 1
}

# Prints MiB/s, then microseconds of the thread that owns the log for a page. $1 read|write, $2 KiB.
nvme_log() { "$program" "$1" "$folder/log" --gib "$gib" --page-kib "$2" --depth $depth 2>/dev/null; }

# The same of fio: io_uring, O_DIRECT. Reads are of the log's file, so both read the same places of
# the disk; writes are sequential, over a file that was written before, with an fdatasync for each
# 64 MiB, as the log syncs each segment; "unsynced" leaves those out.
nvme_fio() {
  local kind=(--name=read --readonly --rw=randread "--filename=$folder/log")
  if [[ $1 == write ]]; then
    kind=(--name=write --rw=write --overwrite=1 "--filename=$folder/fio")
    [[ ${3:-} == unsynced ]] || kind+=("--fdatasync=$((65536 / $2))")
  fi
  fio "${kind[@]}" --size="${gib}G" --bs="$2k" --ioengine=io_uring --direct=1 --iodepth=$depth \
    --output-format=json | python3 -c '
import json, sys
job = json.load(sys.stdin)["jobs"][0]
part = job[sys.argv[1]]
cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * part["runtime"] * 1000 / part["total_ios"]
print("%.1f %.2f" % (part["bw"] / 1024, cpu))' "$1"
}

median() { printf '%s\n' "$@" | sort -g | sed -n "$((($# + 1) / 2))p"; }

# nvme_versus read|write KIB LEAST: alternating rounds; sets `ratio`, and fails below LEAST.
nvme_versus() {
  local ours=() theirs=() unsynced=() a b c
  for ((i = 1; i <= rounds; ++i)); do
    if ((i % 2)); then
      a=$(nvme_fio "$1" "$2") b=$(nvme_log "$1" "$2")
    else
      b=$(nvme_log "$1" "$2") a=$(nvme_fio "$1" "$2")
    fi
    theirs+=("${a% *}") ours+=("${b% *}")
    echo "$1 $2 KiB, round $i: log ${b% *} MiB/s (${b#* } us of CPU a page), fio ${a% *} MiB/s"
    [[ $1 == write ]] || continue
    c=$(nvme_fio write "$2" unsynced)
    unsynced+=("${c% *}")
  done
  [[ $1 == read ]] || echo "for comparison, fio without any sync: $(median "${unsynced[@]}") MiB/s"
  local log_ fio_
  log_=$(median "${ours[@]}") fio_=$(median "${theirs[@]}")
  ratio=$(awk -v a="$log_" -v b="$fio_" 'BEGIN { printf "%.2f", (b > 0) ? a / b : 0 }')
  echo "$1 $2 KiB: log $log_ MiB/s, fio $fio_ MiB/s, ratio $ratio (at least $3)"
  awk -v r="$ratio" -v least="$3" 'BEGIN { exit !(r >= least) }'
}

# nvme_bar_versus read|write LEAST: both sizes, one last line.
nvme_bar_versus() {
  local failed=0 figures=""
  nvme_start
  for kib in 1024 360; do
    nvme_fill "$kib"
    nvme_versus "$1" "$kib" "$2" || failed=1
    figures+="${figures:+, }$kib KiB $ratio"
  done
  echo "nvme $1 against fio, depth $depth: $figures (each at least $2)"
  exit $failed
}
