# Sourced by the bars that measure beside Redis: vs_redis_bar NAME LEAST ARGUMENTS...
# Runs bench_vs_redis, shows its rounds and judges the ratio of the medians.
vs_redis_bar() {
  local name=$1 least=$2
  shift 2
  local root build program log code=0
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  build=${CRUMB_BUILD:-$root/build/release}
  program=$build/tests/bench/bench_vs_redis
  if [[ ! -x $program ]]; then
    echo "no $program: build the target bench_vs_redis first" >&2
    return 1
  fi
  if ! command -v redis-server >/dev/null; then
    echo "skipped: no redis-server (apt-get install redis-server)"
    return 77
  fi
  log=$("$program" --crumbd "$build/cachesvc/server/crumbd" "$@") || code=$?
  echo "$log"
  [[ $code -eq 0 ]] || return "$code"
  tail -n 1 <<<"$log" | awk -v name="$name" -v least="$least" '
    { for (i = 1; i < NF; ++i) if ($i == "ratio") ratio = $(i + 1) }
    END {
      printf "%s: %s x Redis in the same run (at least %s)\n", name, ratio, least
      exit !(ratio + 0 >= least + 0) }'
}
