#!/usr/bin/env bash
# Everything that a machine with a GPU is needed for, in one run. Needs no compiler, no Python.
#
#   scripts/gpu_session.sh BUILD OUT [PART...]
#
# BUILD holds the stages' executables: build/cuda, or what gpu_bundle.sh packed. OUT gets the logs
# and the results, at most 8 files. A PART is one of these; all of them unless named:
#
#   verify     the tests that the build has, and every stage over the whole grid of shapes
#   time       every stage at the shapes of record                                  -> time.jsonl
#   sweep      the last stage against the length of the sequence                    -> sweep.jsonl
#   sanitize   compute-sanitizer's four tools on every kernel, at few ragged shapes -> sanitize.log
#   profile    Nsight Compute on every kernel                                       -> profile.csv
#
# It goes on after a failure, names the failures at the end, and then exits with 1.
#
# shellcheck disable=SC2317  # attempt() calls functions by their names
set -euo pipefail

usage_error() {
  printf 'gpu_session: %s\n' "$*" >&2
  exit 2
}

readonly all_parts='verify time sweep sanitize profile'
(($# >= 2)) || usage_error "usage: gpu_session.sh BUILD OUT [PART...], PART one of: $all_parts"
[[ -d $1 ]] || usage_error "there is no folder '$1'"
build=$(cd "$1" && pwd)
mkdir -p "$2" || usage_error "'$2' cannot be made"
out=$(cd "$2" && pwd)
parts=("${@:3}")
if ((${#parts[@]} == 0)); then
  read -ra parts <<<"$all_parts"
fi
for part in "${parts[@]}"; do
  [[ " $all_parts " == *" $part "* ]] || usage_error "unknown part '$part'; it may be: $all_parts"
done

stages=()
for path in "$build"/[0-9][0-9]_*/; do
  name=$(basename "$path")
  if [[ -x $path$name ]]; then
    stages+=("$name")
  fi
done
((${#stages[@]})) || usage_error "there is no stage's executable in '$build'"
export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PATH="$PATH:/usr/local/cuda/bin"
nvidia-smi -L >/dev/null 2>&1 || usage_error "nvidia-smi sees no GPU"

# --- Shapes, B,H,L,E,M ----------------------------------------------------------------------------

# The last two stand on either side of where stage 04 changes from one kernel to the other.
readonly recorded_shapes=('16,8,4096,64,64' '8,16,4096,128,128' '8,8,4096,512,512'
  '1,8,16384,64,64' '4,16,1024,64,64' '1,32,4096,64,64' '1,64,4096,64,64')
readonly host_shapes=('4,4,1024,64,64' '1,1,4096,64,64')  # stage 01's, which has no GPU to fill
readonly swept_lengths=(2048 4096 8192 16384 32768 65536 131072)
readonly large_shape=1,33000,1024,64,64  # 2^31 elements and more, in each of the four operands
readonly profiled_shape=16,8,4096,64,64
# Every way that the kernels are cut to a head size, each with tails, and a longer sequence.
readonly ragged_shapes=('1,2,17,1,1' '1,2,33,32,10' '2,3,100,48,100' '1,2,300,64,64' '1,1,65,100,60'
  '1,1,37,128,200' '1,1,35,200,48' '1,1,33,256,512' '1,1,17,512,256')
# Where a part has its own shapes, the drivers' grid is all but left out; verify runs it.
readonly no_grid=(env ATTN_VERIFY_BUDGET=1e6)

# --- Running --------------------------------------------------------------------------------------

failures=()
attempt() {  # NAME COMMAND...
  local name=$1 begin=$SECONDS status=0
  shift
  printf '\n--- %s\n' "$name"
  "$@" || status=$?
  local verdict=ok
  if ((status)); then
    verdict="FAILED (exit status $status)"
    failures+=("$name")
  fi
  printf -- '--- %s: %s, %d s\n' "$name" "$verdict" "$((SECONDS - begin))"
}

driver() { "$build/$1/$1" "${@:2}"; }

# Attempts COMMAND for every kernel of every stage that runs on the GPU; stage 01 does not.
each_kernel() {  # NAME COMMAND [ARGUMENT...]
  local stage kernel list
  for stage in "${stages[@]}"; do
    [[ $stage != 01_* ]] || continue
    # A kernel a line, then what is picked at which shape.
    list=$(driver "$stage" --list | awk 'NF == 1')
    [[ -n $list ]] || attempt "list $stage" false
    for kernel in $list; do
      attempt "$1 $stage $kernel" "${@:2}" "$stage" "$kernel"
    done
  done
}

shape_flags() {
  local shape
  for shape in "$@"; do
    printf '%s\n' --shape "$shape"
  done
}

verify() {
  local test stage
  for test in "$build"/tests/*; do
    if [[ -f $test && -x $test ]]; then
      attempt "verify $(basename "$test")" "$test" --gtest_brief=1
    fi
  done
  for stage in "${stages[@]}"; do
    attempt "verify $stage" driver "$stage" --verify-only
    if [[ $stage != 01_* ]]; then
      attempt "verify $stage over 2^31 elements" "${no_grid[@]}" \
        "$build/$stage/$stage" --shape "$large_shape" --verify-only
    fi
  done
}

time_stages() {
  local stage flags
  rm -f "$out/time.jsonl"
  for stage in "${stages[@]}"; do
    if [[ $stage == 01_* ]]; then
      mapfile -t flags < <(shape_flags "${host_shapes[@]}")
    else
      mapfile -t flags < <(shape_flags "${recorded_shapes[@]}")
    fi
    attempt "time $stage" "${no_grid[@]}" \
      "$build/$stage/$stage" "${flags[@]}" --results "$out/time.jsonl"
  done
}

sweep() {
  local stage=${stages[-1]} length flags=()
  rm -f "$out/sweep.jsonl"
  for length in "${swept_lengths[@]}"; do
    flags+=(--shape "16,8,$length,64,64")
  done
  attempt "sweep $stage" "${no_grid[@]}" \
    "$build/$stage/$stage" "${flags[@]}" --results "$out/sweep.jsonl"
}

sanitize() {
  local tool
  : >"$out/sanitize.log"
  for tool in memcheck racecheck initcheck synccheck; do
    each_kernel "sanitize $tool" sanitize_one "$tool"
  done
}

sanitize_one() {  # TOOL STAGE KERNEL
  local status=0 flags summary
  mapfile -t flags < <(shape_flags "${ragged_shapes[@]}")
  printf '\n=== %s: %s, %s\n' "$@" >>"$out/sanitize.log"
  "${no_grid[@]}" compute-sanitizer --tool "$1" --error-exitcode 99 --print-limit 20 \
    "$build/$2/$2" --kernel "$3" "${flags[@]}" --verify-only >"$out/sanitize.part" 2>&1 || status=$?
  summary=$(grep ' SUMMARY: ' "$out/sanitize.part" || true)
  printf '%s\n' "${summary:-no summary}"
  cat "$out/sanitize.part" >>"$out/sanitize.log"
  rm "$out/sanitize.part"
  # It must have said that it looked and found nothing.
  ((status)) || [[ $summary == *"SUMMARY: 0 "* ]] || status=1
  return "$status"
}

metrics() {
  local stall
  printf '%s\n' \
    gpu__time_duration.sum \
    launch__registers_per_thread launch__waves_per_multiprocessor \
    launch__shared_mem_per_block_static launch__shared_mem_per_block_dynamic \
    launch__occupancy_limit_registers launch__occupancy_limit_shared_mem \
    sm__warps_active.avg.pct_of_peak_sustained_active \
    sm__inst_executed.avg.per_cycle_active \
    sm__throughput.avg.pct_of_peak_sustained_elapsed \
    dram__throughput.avg.pct_of_peak_sustained_elapsed \
    dram__sectors_read.sum dram__sectors_write.sum \
    lts__t_sectors_op_read.sum lts__t_sectors_op_write.sum \
    lts__t_sectors_op_atom.sum lts__t_sectors_op_red.sum lts__t_sector_hit_rate.pct \
    l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum \
    l1tex__t_requests_pipe_lsu_mem_global_op_st.sum l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum \
    l1tex__t_requests_pipe_lsu_mem_global_op_red.sum \
    l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum \
    l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum \
    l1tex__t_sector_hit_rate.pct \
    memory_l1_wavefronts_shared memory_l1_wavefronts_shared_ideal \
    smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum \
    smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum \
    smsp__inst_executed.sum smsp__sass_thread_inst_executed_op_ffma_pred_on.sum
  for stall in long_scoreboard short_scoreboard barrier mio_throttle lg_throttle \
    math_pipe_throttle wait not_selected dispatch_stall no_instruction branch_resolve \
    membar drain; do
    printf '%s\n' "smsp__average_warps_issue_stalled_${stall}_per_issue_active.ratio"
  done
}

profile() {
  : >"$out/profile.csv"
  : >"$out/profile.log"
  each_kernel profile profile_one
}

profile_one() {  # STAGE KERNEL
  local status=0 csv=$out/profile.part
  # One launch of each kernel and grid; a stage's checks launch theirs at other shapes.
  "${no_grid[@]}" ncu --clock-control none --csv --page raw --print-units base \
    --log-file "$csv" --metrics "$(metrics | paste -sd,)" --kernel-name 'regex:_kernel' \
    --filter-mode per-launch-config --launch-count 1 \
    "$build/$1/$1" --kernel "$2" --shape "$profiled_shape" --verify-only \
    >>"$out/profile.log" 2>&1 || status=$?
  printf '# %s, %s, %s\n' "$1" "$2" "$profiled_shape" >>"$out/profile.csv"
  # The header, and a line for each launch; without one there is nothing to read.
  grep '^"' "$csv" | tee -a "$out/profile.csv" | grep -q '^"[0-9]' || ((status)) || status=1
  grep -v '^"' "$csv" >>"$out/profile.log" || true
  rm -f "$csv"
  return "$status"
}

session() {
  printf '%s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ), parts: ${parts[*]}"
  nvidia-smi --format=csv,noheader \
    --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit
  local part
  for part in "${parts[@]}"; do
    printf '\n=== %s\n' "$part"
    case $part in
      verify) verify ;;
      time) time_stages ;;
      sweep) sweep ;;
      sanitize) sanitize ;;
      profile) profile ;;
    esac
  done
  printf '\n'
  if ((${#failures[@]})); then
    printf 'FAILED: %s\n' "${failures[@]}"
    return 1
  fi
  printf 'all done without a failure, in %d s\n' "$SECONDS"
}

# A log that would be too large to carry is cut, visibly.
readonly limit_bytes=$((15 * 1024 * 1024))
cut_logs() {
  local file
  for file in "$out"/*; do
    if [[ $(stat -c %s "$file") -gt $limit_bytes ]]; then
      truncate -s "$limit_bytes" "$file"
      printf '\n[cut here: the file was over %d bytes]\n' "$limit_bytes" >>"$file"
      printf 'cut: %s\n' "$file"
    fi
  done
}

status=0
session 2>&1 | tee "$out/session.log" || status=1
cut_logs
exit "$status"
