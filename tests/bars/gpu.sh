# Sourced by the bars of the GPU's codec. gpu_measure KIND ARGUMENTS... runs bench_gpu_codec and shows
# its lines; gpu_figure reads one of them; gpu_judge NAME FIGURE MOST keeps the verdict, gpu_judge_us
# that of microseconds, which are promised for one kind of GPU; gpu_verdict TEXT ends the bar. 4096
# pages of 64 tokens, 8 heads, one layer, head dim 128 unless ARGUMENTS say otherwise. The program is
# the bundle's, CRUMB_BUILD's or build/cuda's.
gpu_log=''
gpu_failed=()
gpu_reference='NVIDIA H200'  # the whole chip: a MIG slice or another H200 has a longer name
gpu_elsewhere=''

gpu_program() {
  local here place
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  for place in "$here/../bin" "${CRUMB_BUILD:-/nonexistent}/tests/bench" "$here/../../build/cuda/tests/bench"; do
    if [[ -x $place/bench_gpu_codec ]]; then
      echo "$place/bench_gpu_codec"
      return
    fi
  done
  echo "skipped: no bench_gpu_codec (cmake --preset cuda && cmake --build --preset cuda, where nvcc is)" >&2
  exit 77
}

gpu_measure() {
  local program lines code=0 kind=$1
  shift
  program=$(gpu_program) || exit 77
  lines=$("$program" --kind "$kind" --burst 3 "$@" 2>&1) || code=$?
  echo "$lines"
  gpu_log+=$lines$'\n'
  ((code == 77)) && { echo "skipped: ${lines##*$'\n'}"; exit 77; }
  ((code == 0)) || exit 1
}

# gpu_figure KIND WAY NAME [DIM [PAGES [LAYERS]]]: NAME is burst, sustained or floor (microseconds), or
# ratio (sustained time in floors). Ends the bar where nothing was measured.
gpu_figure() {
  local figure
  figure=$(awk -v kind="$1" -v way="$2" -v name="$3" -v dim="d=${4:-128}" -v pages="pages=${5:-4096}" \
    -v layers="${6:-1}" '
    $1 == kind && $2 == dim && $3 == pages && $5 == layers && $7 == way {
      for (i = 8; i < NF; ++i) {
        if (name == $i) print $(i + 1)
        if (name == "ratio" && $i == "sustained") print substr($(i + 3), 2)
      }
    }' <<<"$gpu_log" | tail -n 1)
  if [[ -z $figure ]]; then
    echo "$1 $2: not measured: $(grep -F "none:" <<<"$gpu_log" | tail -n 1)" >&2
    return 1
  fi
  echo "$figure"
}

# One figure and its bound; all must hold.
gpu_judge() {
  local name=$1 figure=$2 most=$3
  if ! awk -v figure="$figure" -v most="$most" 'BEGIN { exit !(figure > 0 && figure + 0 <= most + 0) }'; then
    gpu_failed+=("$name $figure > $most")
  fi
}

# The device that bench_gpu_codec names in its first line.
gpu_device() { sed -n 's/: a copy moves .*//p' <<<"$gpu_log" | head -n 1; }

# As gpu_judge, where the figure was measured on the GPU that it is promised for; else nothing holds
# or fails, and gpu_verdict says so.
gpu_judge_us() {
  local device
  device=$(gpu_device)
  if [[ -n $device && -n $2 && $device != "$gpu_reference" ]]; then
    gpu_elsewhere=$device
  else
    gpu_judge "$@"
  fi
}

# The figures of a way in words: "371.2 us sustained (1.28 x floor), 407.0 us burst".
gpu_words() {
  echo "$1 $2 $(gpu_figure "$@" sustained) us sustained ($(gpu_figure "$@" ratio) x floor)," \
    "$(gpu_figure "$@" burst) us burst"
}

gpu_verdict() {
  local text=$1
  if ((${#gpu_failed[@]} == 0)) && [[ -n $gpu_elsewhere ]]; then
    echo "skipped: microseconds are promised for one $gpu_reference, this is '$gpu_elsewhere': $text"
    exit 77
  fi
  ((${#gpu_failed[@]} == 0)) || printf 'over: %s\n' "${gpu_failed[@]}"
  echo "$text"
  ((${#gpu_failed[@]} == 0))
}
