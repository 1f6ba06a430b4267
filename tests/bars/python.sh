# Sourced by the bars of the Python package: python_setup leaves $python, an interpreter that has it, built out
# of $build, and $crumbd; the environment is kept in the build.
python_setup() {
  local root
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  build=${CRUMB_BUILD:-$root/build/release}
  export CRUMBD=$build/cachesvc/server/crumbd
  [[ -x $CRUMBD ]] || { echo "no $CRUMBD: build the target crumbd first" >&2; exit 1; }
  if ! "$root/deploy/install_packages" --venv "$build/python-venv" pip-build pip-test; then
    echo "skipped: no virtual environment with the packages of deploy/packages.txt"
    exit 77
  fi
  python=$build/python-venv/bin/python
  CRUMB_BUILD=$build "$python" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps \
    --force-reinstall -C build-dir="$build/python-module" "$root/client/python"
}
