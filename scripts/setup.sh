#!/usr/bin/env bash
# Installs what ./tour and ./test need and what is missing: packages by apt, matplotlib into .venv.
#
#   scripts/setup.sh          to build and run the stages and draw the charts
#   scripts/setup.sh clang    and clang++, for ThreadSanitizer, MemorySanitizer and the microscope
#
# Whether something is missing is found out by using it, not by asking the package manager: so what
# was installed in another way counts too. Where nothing is missing it takes about a second.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*"; }
stop() { say "setup: $*" >&2; exit 1; }

want_clang=0
case "${1:-}" in
  '') ;;
  clang) want_clang=1 ;;
  *) stop "unknown argument '$1'; it may be: clang" ;;
esac

# --- What is missing, as names of Debian's and Ubuntu's packages ----------------------------------

missing=()
need() {  # PACKAGE COMMAND...: the package is missing if the command fails
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

links() {  # COMPILER [FLAG...]: an empty program, so that this is quick
  printf 'int main() {}\n' | "$1" -x c++ - -o /dev/null "${@:2}"
}

has_header() {  # COMPILER HEADER
  printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$2" | "$1" -x c++ -E - -o /dev/null
}

has_library() {  # HEADER LIBRARY
  has_header g++ "$1" && links g++ "-l$2"
}

find_missing() {
  missing=()
  need git git --version
  need cmake cmake --version
  need ninja-build ninja --version
  need g++ links g++
  # A virtual environment needs ensurepip, which Debian packs apart from Python.
  need python3-venv python3 -c 'import venv, ensurepip'
  need libbenchmark-dev has_library benchmark/benchmark.h benchmark
  need libgtest-dev has_library gtest/gtest.h gtest
  need libboost-context-dev has_library boost/context/detail/fcontext.hpp boost_context
  need libcli11-dev has_header g++ CLI/CLI.hpp
  need nlohmann-json3-dev has_header g++ nlohmann/json.hpp

  if ((want_clang)); then
    need clang links clang++
    need libclang-rt-dev links clang++ -fsanitize=thread
    need llvm llvm-symbolizer --version  # or their reports name no lines
    need libomp-dev has_header clang++ omp.h
  fi
}

find_missing
if ((${#missing[@]})); then
  as_root=()
  if ((EUID != 0)); then
    as_root=(sudo -n)
  fi
  install=(apt-get install -y --no-install-recommends "${missing[@]}")
  if ! command -v apt-get >/dev/null; then
    stop "missing (by Debian's names): ${missing[*]}. Please install them and run this again."
  fi
  if ! "${as_root[@]}" true 2>/dev/null; then
    stop "missing: ${missing[*]}. Please run: sudo apt-get update && sudo ${install[*]}"
  fi
  say "setup: installing ${missing[*]}"
  # A frontend that never asks; what apt prints matters only if it fails.
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 </dev/null; }
  if ! { apt apt-get update && apt "${install[@]}"; }; then
    tail -n 20 "$log" >&2
    stop "apt-get failed; see above"
  fi
  find_missing
  if ((${#missing[@]})); then
    stop "still missing after apt-get: ${missing[*]}"
  fi
fi

# --- Python packages ------------------------------------------------------------------------------

# The mark says which requirements were installed, so that a change of them installs anew.
mark=.venv/requirements.txt
if ! cmp -s scripts/requirements.txt "$mark" ||
  ! .venv/bin/python -c 'import matplotlib' 2>/dev/null; then
  say "setup: installing $(paste -sd' ' scripts/requirements.txt) into .venv"
  python3 -m venv --clear .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
    -r scripts/requirements.txt || stop "pip could not install scripts/requirements.txt into .venv"
  cp scripts/requirements.txt "$mark"
fi
