#!/usr/bin/env bash
# Counts what every stage's kernels ask of memory, for docs/results/work_NN.ndjson: at the shapes at
# which scripts/gpu_session.sh asks Nsight Compute (part work). Needs the build of `cmake --preset
# microscope`; the counts are the same on every machine.
#
#   scripts/record_work.sh [STAGE...]      all of them unless named
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly shapes=('--shape' '1,5,256,64,64' '--shape' '1,7,100,48,100')
stages=("$@")
if ((${#stages[@]} == 0)); then
  for folder in [0-9][0-9]_*/; do
    [[ ! -e ${folder}main.cu ]] || stages+=("${folder%/}")
  done
fi
export ATTN_VERIFY_BUDGET=6e4
for stage in "${stages[@]}"; do
  driver=build/microscope/$stage/$stage
  if [[ ! -x $driver ]]; then
    printf 'record_work: there is no %s; build it: cmake --preset microscope, cmake --build %s\n' \
      "$driver" build/microscope >&2
    exit 2
  fi
  results=docs/results/work_${stage%%_*}.ndjson
  rm -f "$results"
  for dtype in f32 bf16; do
    if "$driver" --list --dtype "$dtype" >/dev/null 2>&1; then
      "$driver" --dtype "$dtype" "${shapes[@]}" --results "$results"
    fi
  done
done
