#!/usr/bin/env bash
# Everything that a machine with a GPU is needed for, in one run. Needs no compiler, no Python.
#
#   scripts/gpu_session.sh BUILD OUT [--stage NAME] [PART...]
#
# BUILD holds the stages' executables: build/cuda, or what gpu_bundle.sh packed. OUT gets the logs
# and the results, at most 12 files. --stage leaves the other stages out, and the build's tests. A
# PART is one of these; all of them unless named:
#
#   verify     the tests that the build has; every stage over the whole grid; its
#              examples                                                             -> examples.log
#   time       every stage at the shapes of record                                  -> time.jsonl
#   sweep      the stages from 04 on against the length of the sequence             -> sweep.jsonl
#   sanitize   compute-sanitizer's four tools on every kernel, at few ragged shapes -> sanitize.log
#   profile    Nsight Compute on every kernel                                       -> profile.csv
#   work       Nsight Compute's counts of memory traffic, at small shapes           -> work.csv
#   patterns   the same for one instruction of each kind and pattern of access      -> patterns.csv
#   lab        the stages' labs                                                     -> lab.ndjson
#
# It goes on after a failure, names the failures at the end, and then exits with 1.
#
# shellcheck disable=SC2317  # attempt() calls functions by their names
set -euo pipefail

usage_error() {
  printf 'gpu_session: %s\n' "$*" >&2
  exit 2
}

readonly all_parts='verify time sweep sanitize profile work patterns lab'
(($# >= 2)) ||
  usage_error "usage: gpu_session.sh BUILD OUT [--stage NAME] [PART...], PART one of: $all_parts"
[[ -d $1 ]] || usage_error "there is no folder '$1'"
build=$(cd "$1" && pwd)
mkdir -p "$2" || usage_error "'$2' cannot be made"
out=$(cd "$2" && pwd)
shift 2
only_stage=
if [[ ${1-} == --stage ]]; then
  (($# >= 2)) || usage_error '--stage lacks its NAME'
  only_stage=$2
  shift 2
fi
parts=("$@")
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
if [[ -n $only_stage ]]; then
  [[ " ${stages[*]} " == *" $only_stage "* ]] ||
    usage_error "--stage $only_stage: there is none; it may be: ${stages[*]}"
  stages=("$only_stage")
fi
# Libraries are those of the bundle, if it is one; cuBLAS is that of this machine's toolkit.
export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:/usr/local/cuda/lib64"
export PATH="$PATH:/usr/local/cuda/bin"
nvidia-smi -L >/dev/null 2>&1 || usage_error "nvidia-smi sees no GPU"

# --- Shapes, B,H,L,E,M ----------------------------------------------------------------------------

# A run of a driver is a line: its flags, a --shape for each shape.
at_shapes() {  # FLAGS SHAPE...
  printf '%s' "$1"
  printf ' --shape %s' "${@:2}"
  printf '\n'
}

# For a stage with many kernels: less than the second per kernel and shape that a driver takes.
readonly soon='--benchmark_min_time=0.3s'

# What is timed for the record. A stage's first run, at its default inputs, is what it is judged by.
runs_of_record() {  # STAGE
  case $1 in
    01_*) at_shapes '' 4,4,1024,64,64 1,1,4096,64,64 ;;  # it has no GPU to fill
    05_*)
      at_shapes "--dtype bf16 $soon" 8,32,4096,64,64 1,96,8192,128,128 4,64,4096,128,128 \
        2,16,16384,128,128 8,8,1024,64,64
      at_shapes "--dtype bf16 --inputs strong $soon" 8,32,4096,64,64
      at_shapes "--dtype bf16 --inputs exponential $soon" 8,32,4096,64,64
      at_shapes "--dtype bf16 --inputs resets $soon" 8,32,4096,64,64
      at_shapes "--dtype f32 $soon" 8,32,4096,64,64
      # As stages 02 to 04, whose operator it is without gates.
      at_shapes "--dtype f32 --inputs ungated $soon" 16,8,4096,64,64
      at_shapes "--dtype bf16 --inputs ungated $soon" 16,8,4096,64,64
      ;;
    06_*)
      at_shapes "--dtype bf16 $soon" 8,32,4096,64,64 4,64,4096,128,128 1,96,8192,128,128 \
        8,8,1024,64,64
      at_shapes "--dtype bf16 --inputs mild $soon" 8,32,4096,64,64 8,8,1024,64,64
      at_shapes "--dtype bf16 --inputs resets $soon" 8,32,4096,64,64
      # The published article's shape, and stage 05's.
      at_shapes "--dtype f32 $soon" 4,4,1024,100,100 8,32,4096,64,64
      # As stages 02 to 05, whose operator it is without decays.
      at_shapes "--dtype f32 --inputs ungated $soon" 16,8,4096,64,64
      at_shapes "--dtype bf16 --inputs ungated $soon" 16,8,4096,64,64
      ;;
    07_*)
      # The first kernels would take minutes where the scores are many.
      local all='--benchmark_min_time=0.5'
      local fast="$all --benchmark_filter=/(flash|tensor_cores|hopper|05_chunked_gla|06_rwkv6)/"
      at_shapes "--dtype bf16 $all" 4,16,4096,128,128 4,16,4096,64,64
      at_shapes "--dtype bf16 $fast" 1,16,16384,128,128 4,16,4096,256,256
      at_shapes "--dtype bf16 --inputs causal $all" 4,16,4096,128,128 4,16,4096,64,64
      at_shapes "--dtype bf16 --inputs causal $fast" 1,16,16384,128,128
      at_shapes "--dtype f32 $all" 4,16,4096,64,64
      ;;
    # The last two stand on either side of where stage 04 changes from one kernel to the other.
    *) at_shapes '' 16,8,4096,64,64 8,16,4096,128,128 8,8,4096,512,512 1,8,16384,64,64 \
      4,16,1024,64,64 1,32,4096,64,64 1,64,4096,64,64 ;;
  esac
  # Its last step is for bf16.
  [[ $1 != 04_* ]] ||
    at_shapes '--dtype bf16' 8,32,4096,64,64 16,8,4096,64,64 8,16,4096,128,128 1,8,16384,64,64
}

# Where linear and softmax attention are compared: 16 heads, by the kernels that a stage may pick.
crossover_run() {  # FLAGS KERNELS
  at_shapes "--dtype bf16 $1 --benchmark_min_time=0.3 --benchmark_filter=/($2)/" \
    1,16,{256,512,1024,2048,4096,8192,16384,32768,65536,131072},128,128
}

swept_run() {  # STAGE
  case $1 in
    0[1-3]_* | 07_*) ;;
    # With more heads the inputs of the longest would take minutes to make and to verify, and stage
    # 06's first kernels take half a second there.
    05_*) at_shapes "--dtype bf16 $soon" 1,8,{2048,4096,8192,16384,32768,65536,131072,262144},64,64 ;;
    06_*)
      at_shapes "--dtype bf16 $soon --benchmark_filter=/(vector_recurrent|engine|segments)/" \
        1,8,{2048,4096,8192,16384,32768,65536,131072,262144},64,64
      ;;
    *) at_shapes '' 16,8,{2048,4096,8192,16384,32768,65536,131072},64,64 ;;
  esac
  case $1 in
    05_*) crossover_run '--inputs mild' 'engine|segments' ;;
    06_*) crossover_run '--inputs exponential' 'engine|segments' ;;
    07_*) crossover_run '--inputs causal' 'tensor_cores|hopper' ;;
  esac
}

profiled_shape() {  # STAGE
  case $1 in
    0[56]_*) printf '8,32,4096,64,64\n' ;;
    07_*) printf '4,16,4096,128,128\n' ;;
    *) printf '16,8,4096,64,64\n' ;;
  esac
}

readonly large_shape=1,33000,1024,64,64  # 2^31 elements and more, in each operand
# Every way that the kernels are cut to a head size, each with tails, and a longer sequence.
readonly ragged_shapes=('1,2,17,1,1' '1,2,33,32,10' '2,3,100,48,100' '1,2,300,64,64' '1,1,65,100,60'
  '1,1,37,128,200' '1,1,35,200,48')
readonly ragged_shapes_over_256=('1,1,33,256,512' '1,1,17,512,256')
# The same ways, for racecheck and a kernel whose threads all read every word of every step: it notes
# each of these reads, one after the other, and would take minutes. A race shows in the second step.
readonly few_steps=('1,2,3,1,1' '1,2,5,32,10' '2,3,5,48,100' '1,2,5,64,64' '1,1,4,100,60' '1,1,5,128,200'
  '1,1,4,200,48' '1,1,3,256,512' '1,1,3,512,256')
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

declare -A kernels  # of 'STAGE DTYPE'; empty where the stage has none of this dtype

list_kernels() {
  local stage dtype list status
  for stage in "${stages[@]}"; do
    for dtype in f32 bf16; do
      status=0
      list=$(driver "$stage" --list --dtype "$dtype" 2>&1) || status=$?
      case $status in
        # A kernel a line, then what is picked at which shape.
        0) kernels[$stage $dtype]=$(awk 'NF == 1' <<<"$list") ;;
        2) kernels[$stage $dtype]= ;;  # a dtype that it does not accept
        *)
          printf '%s\n' "$list"
          failures+=("list $stage $dtype")
          ;;
      esac
    done
    [[ -n ${kernels[$stage f32]-}${kernels[$stage bf16]-} ]] || failures+=("list $stage")
  done
}

dtypes() {  # STAGE: those it has kernels of
  local dtype
  for dtype in f32 bf16; do
    [[ -z ${kernels[$1 $dtype]-} ]] || printf '%s\n' "$dtype"
  done
}

# Attempts COMMAND for every kernel, in each dtype, of every stage on the GPU; stage 01 is not.
each_kernel() {  # NAME COMMAND [ARGUMENT...]
  local stage dtype kernel
  for stage in "${stages[@]}"; do
    [[ $stage != 01_* ]] || continue
    for dtype in $(dtypes "$stage"); do
      for kernel in ${kernels[$stage $dtype]}; do
        attempt "$1 $stage $kernel $dtype" "${@:2}" "$stage" "$kernel" "$dtype"
      done
    done
  done
}

example() { "$1" | tee -a "$out/examples.log"; }

verify() {
  local test stage dtype example
  rm -f "$out/examples.log"
  if [[ -z $only_stage ]]; then
    for test in "$build"/tests/*; do
      if [[ -f $test && -x $test ]]; then
        attempt "verify $(basename "$test")" "$test" --gtest_brief=1
      fi
    done
  fi
  for stage in "${stages[@]}"; do
    for dtype in $(dtypes "$stage"); do
      attempt "verify $stage $dtype" driver "$stage" --dtype "$dtype" --verify-only
      if [[ $stage != 01_* ]]; then
        attempt "verify $stage $dtype over 2^31 elements" "${no_grid[@]}" \
          "$build/$stage/$stage" --dtype "$dtype" --shape "$large_shape" --verify-only
      fi
    done
    if [[ -x $build/$stage/${stage}_jitter ]]; then
      attempt "verify $stage hopper, threads late" "$build/$stage/${stage}_jitter" --kernel hopper \
        --dtype bf16 --verify-only
    fi
    for example in "$build/$stage"/*; do
      if [[ -f $example && -x $example && $example != */"$stage" && $example != *_sanitize &&
        $example != *_jitter ]]; then
        attempt "verify $stage $(basename "$example")" example "$example"
      fi
    done
  done
}

# The runs of a stage's driver that are lines of the standard input.
record_runs() {  # NAME STAGE RESULTS
  local runs run flags
  mapfile -t runs
  for run in "${runs[@]}"; do
    read -ra flags <<<"$run"
    attempt "$1 $2 $run" "${no_grid[@]}" "$build/$2/$2" "${flags[@]}" --results "$out/$3"
  done
}

time_stages() {
  local stage
  rm -f "$out/time.jsonl"
  for stage in "${stages[@]}"; do
    record_runs time "$stage" time.jsonl < <(runs_of_record "$stage")
  done
}

sweep() {
  local stage
  rm -f "$out/sweep.jsonl"
  for stage in "${stages[@]}"; do
    record_runs sweep "$stage" sweep.jsonl < <(swept_run "$stage")
  done
}

sanitize() {
  local tool
  : >"$out/sanitize.log"
  for tool in memcheck racecheck initcheck synccheck; do
    each_kernel "sanitize $tool" sanitize_one "$tool"
  done
}

sanitize_one() {  # TOOL STAGE KERNEL DTYPE
  local status=0 inputs='' flags summary program=$build/$2/$2
  # A stage may have a build of its own for these tools.
  [[ ! -x ${program}_sanitize ]] || program+=_sanitize
  # Mild gates but for some of minus infinity: both ways through the kernels. With the mask and, by
  # the stage's checks, without.
  [[ $2 != 0[56]_* ]] || inputs='--inputs resets'
  [[ $2 != 07_* ]] || inputs='--inputs causal'
  local shapes=("${ragged_shapes[@]}")
  [[ $2 == 07_* ]] || shapes+=("${ragged_shapes_over_256[@]}")  # which it does not take
  [[ "$1 $2 $3" != 'racecheck 06_rwkv6 naive_recurrent' ]] || shapes=("${few_steps[@]}")
  read -ra flags <<<"$(at_shapes "--kernel $3 --dtype $4 $inputs" "${shapes[@]}")"
  printf '\n=== %s: %s, %s %s\n' "$1" "$2" "${*:3}" "$inputs" >>"$out/sanitize.log"
  "${no_grid[@]}" compute-sanitizer --tool "$1" --error-exitcode 99 --print-limit 20 \
    "$program" "${flags[@]}" --verify-only >"$out/sanitize.part" 2>&1 || status=$?
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

profile_one() {  # STAGE KERNEL DTYPE
  local status=0 csv=$out/profile.part shape
  shape=$(profiled_shape "$1")
  # One launch of each kernel and grid; a stage's checks launch theirs at other shapes.
  "${no_grid[@]}" ncu --clock-control none --csv --page raw --print-units base \
    --log-file "$csv" --metrics "$(metrics | paste -sd,)" --kernel-name 'regex:_kernel' \
    --filter-mode per-launch-config --launch-count 1 \
    "$build/$1/$1" --kernel "$2" --dtype "$3" --shape "$shape" --verify-only \
    >>"$out/profile.log" 2>&1 || status=$?
  printf '# %s, %s, %s, %s\n' "$@" "$shape" >>"$out/profile.csv"
  # The header, and a line for each launch; without one there is nothing to read.
  grep '^"' "$csv" >>"$out/profile.csv" || true
  grep -q '^"[0-9]' "$csv" || ((status)) || status=1
  grep -v '^"' "$csv" >>"$out/profile.log" || true
  rm -f "$csv"
  return "$status"
}

# Of what the microscope counts (docs/microscope.md), what this GPU's counters say.
work_metrics() {
  local op
  for op in ld st red atom; do
    printf 'l1tex__t_%s_pipe_lsu_mem_global_op_%s.sum\n' requests "$op" sectors "$op"
  done
  printf '%s\n' memory_l1_wavefronts_shared memory_l1_wavefronts_shared_ideal \
    smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{ld,st}.sum \
    smsp__inst_executed_op_ldgsts.sum gpu__time_duration.sum
}

# Small, and no other launch of the run has these grids.
readonly work_shapes=('1,5,256,64,64' '1,7,100,48,100')

work() {
  : >"$out/work.csv"
  : >"$out/work.log"
  each_kernel work work_one
}

work_one() {  # STAGE KERNEL DTYPE
  local status=0 csv=$out/work.part flags
  read -ra flags <<<"$(at_shapes "--kernel $2 --dtype $3" "${work_shapes[@]}")"
  # Demangled: kernels that differ in template arguments only are different kernels.
  env ATTN_VERIFY_BUDGET=6e4 ncu --clock-control none --csv --page raw --print-units base --log-file "$csv" \
    --metrics "$(work_metrics | paste -sd,)" --kernel-name-base demangled \
    --kernel-name 'regex:_kernel' --filter-mode per-launch-config --launch-count 1 \
    "$build/$1/$1" "${flags[@]}" --verify-only >>"$out/work.log" 2>&1 || status=$?
  printf '# %s, %s, %s, %s\n' "$@" "${work_shapes[*]}" >>"$out/work.csv"
  grep '^"' "$csv" >>"$out/work.csv" || true
  grep -q '^"[0-9]' "$csv" || ((status)) || status=1
  rm -f "$csv"
  return "$status"
}

# One line for each memory instruction of the probe, with what it was counted for.
patterns() {
  attempt patterns patterns_of_probe
}

patterns_of_probe() {
  local report=$out/patterns.part status=0
  ncu --clock-control none -f -o "$report" --section SourceCounters --kernel-name 'regex:_kernel' \
    "$build/tests/pattern_probe" >"$out/patterns.log" 2>&1 || status=$?
  ncu --import "$report.ncu-rep" --csv --page source --print-source sass 2>>"$out/patterns.log" |
    grep -E '^"(Kernel Name|Address)"|(LDS|LDSM|STS|LDG|STG|RED|REDG)[.A-Z0-9]* ' |
    cut -d'"' -f1-49 | awk '/^"[AK]/ || !seen[$0]++' >"$out/patterns.csv"  # listed twice
  rm -f "$report.ncu-rep"
  return "$status"
}

lab() {
  local stage executable
  rm -f "$out/lab.ndjson"
  for stage in "${stages[@]}"; do
    for executable in "$build/$stage"/*_lab; do
      if [[ -x $executable ]]; then
        attempt "lab $(basename "$executable")" "$executable" --results "$out/lab.ndjson"
      fi
    done
  done
}

session() {
  printf '%s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ), parts: ${parts[*]}"
  nvidia-smi --format=csv,noheader \
    --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit
  list_kernels
  local part
  for part in "${parts[@]}"; do
    printf '\n=== %s\n' "$part"
    case $part in
      verify) verify ;;
      time) time_stages ;;
      sweep) sweep ;;
      sanitize) sanitize ;;
      profile) profile ;;
      work) work ;;
      patterns) patterns ;;
      lab) lab ;;
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
