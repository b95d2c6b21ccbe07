#!/usr/bin/env bash
# Builds every stage for one GPU architecture on this machine, which needs nvcc but no GPU, and
# packs the executables with the libraries they load into build/bundle/, to be carried elsewhere:
#
#   scripts/gpu_bundle.sh [ARCHITECTURE]      90a unless given: Hopper
#   scripts/gpu_session.sh build/bundle OUT   there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

architecture=${1:-90a}
if ! [[ $# -le 1 && $architecture =~ ^[0-9]{2,3}[af]?$ ]]; then
  printf "gpu_bundle: one architecture is expected, such as 90a, not '%s'\n" "$*" >&2
  exit 2
fi

build=build/cuda-$architecture
bundle=build/bundle
scripts/setup.sh
cmake --log-level=NOTICE --preset cuda-portable -B "$build" \
  -DCMAKE_CUDA_ARCHITECTURES="$architecture"
cmake --build "$build"

rm -rf "$bundle"
mkdir -p "$bundle/lib"
pack() {  # EXECUTABLE FOLDER
  mkdir -p "$bundle/$2"
  cp "$1" "$bundle/$2/"
  # All but what every machine has: glibc, and the compiler's runtime, of which NVIDIA's tools may
  # need a newer one than this machine's. And but cuBLAS: it would be most of the bundle, and is in
  # the CUDA toolkit there.
  local elsewhere='/lib(c|m|dl|rt|pthread|stdc[+][+]|gcc_s|cublas|cublasLt)[.]so'
  ldd "$1" | awk -v elsewhere="$elsewhere" '$3 ~ /^\// && $3 !~ elsewhere {print $3}' |
    xargs -r cp -t "$bundle/lib"
}
# The stages' drivers and examples.
for folder in [0-9][0-9]_*/; do
  stage=${folder%/}
  for executable in "$build/$stage"/*; do
    if [[ -f $executable && -x $executable ]]; then
      pack "$executable" "$stage"
    fi
  done
done
# The tests that this build has, beside the drivers.
while IFS= read -r test; do
  pack "$test" tests
done < <(find "$build/tests" -type f -executable ! -path '*/CMakeFiles/*' 2>/dev/null)

printf '\n%s, for sm_%s, commit %s:\n' "$bundle" "$architecture" \
  "$(git describe --always --dirty --abbrev=10 2>/dev/null || printf unknown)"
(cd "$bundle" && find . -type f -printf '%P\n' | sort)
du -sh "$bundle"
