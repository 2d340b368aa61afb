#!/usr/bin/env bash
# All that must be seen on a GPU, in one command of a few minutes, without a network:
#
#   benchmarks/gpu_campaign.sh [--out DIR] [--budget SECONDS] [--parts LIST] [--no-build] [--smoke]
#
#   build        the package with CUDA for this GPU, and the two CUDA programs
#   conformance  every function of cuda/ptx.h against its definition
#   micro        the constants of the planner's model
#   tests        the tests that run on a GPU; none may be skipped for want of one
#   graphs       capture in CUDA graphs, independent calls, Python threads
#   soak         100 000 steps beside other work, each call bitwise as the first
#   sanitizers   compute-sanitizer: memcheck, racecheck, synccheck, initcheck
#   peers        µs per step: ours, lax.scan, cuDNN through JAX, torch.nn; in all the time left
#
# Each part has a limit, its share of the budget; one that fails or hangs costs itself only. DIR
# (default: $OUT, or gpu_results) gets at most eight files: *.jsonl with a row for everything
# measured, log.txt, tests.txt, summary.md. --no-build takes the package that is installed; --smoke
# tries all scripts with tiny sizes on a machine without a GPU. PYTHON names the interpreter.
# Ends with 0 only if every part did what it should.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${OUT:-gpu_results} budget=540 smoke="" build=1 parts=""
all=build,conformance,micro,tests,graphs,soak,sanitizers,peers
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift ;;
    --budget) budget=$2; shift ;;
    --parts) parts=$2; shift ;;
    --no-build) build="" ;;
    --smoke) smoke=--smoke build="" ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done
parts=${parts:-$all}
for part in ${parts//,/ }; do
  case ",$all," in
    *",$part,"*) ;;
    *) echo "gpu_campaign: no part is named $part; there are $all" >&2; exit 2 ;;
  esac
done

mkdir -p "$out"
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
# Kept, so that a second run builds only what has changed.
work=${PRNN_CAMPAIGN_WORK:-$root/build/gpu_campaign}
mkdir -p "$work"
rm -f "$out"/{campaign,device,checks,peers}.jsonl "$out"/{log.txt,tests.txt,summary.md}
log=$out/log.txt
: >"$log"
failed=0

# The installed package before the repository, which is there for `benchmarks`.
if [ -n "$build" ]; then
  export PYTHONPATH=$work/site:$root${PYTHONPATH:+:$PYTHONPATH}
else
  export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$root
fi
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false  # several processes, and torch beside JAX
[ -n "$smoke" ] && export JAX_PLATFORMS=cpu

now() { date +%s.%N; }
began=$(now)
left() { awk -v b="$began" -v n="$(now)" -v t="$budget" 'BEGIN { printf "%d", t - (n - b) }'; }

# part NAME SHARE COMMAND...: SHARE of 100 of the budget at most; 0 is all that is left.
part() {
  local name=$1 share=$2 limit status seconds start
  shift 2
  case ",$parts," in *",$name,"*) ;; *) return ;; esac
  limit=$(left)
  limit=$((limit - 8))  # for the summary
  if [ "$share" -gt 0 ] && [ $((budget * share / 100)) -lt "$limit" ]; then
    limit=$((budget * share / 100))
  fi
  start=$(now)
  if [ "$limit" -lt 5 ]; then
    status="no time left"
    failed=1
  else
    echo "== $name, $limit s at most" | tee -a "$log"
    export PART_SECONDS=$((limit > 20 ? limit - 10 : limit))
    timeout -k 5 "$limit" "$@" >>"$log" 2>&1
    case $? in
      0) status=ok ;;
      77) status="no GPU"; [ -n "$smoke" ] || failed=1 ;;
      124 | 137) status="out of time"; failed=1 ;;
      *) status=failed; failed=1 ;;
    esac
  fi
  seconds=$(awk -v a="$start" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }')
  echo "   $name: $status, $seconds s" | tee -a "$log"
  echo "{\"part\": \"campaign\", \"name\": \"$name\", \"status\": \"$status\"," \
    "\"seconds\": $seconds}" >>"$out/campaign.jsonl"
}

# ---- build ----

compute_capability() { # 9.0 -> 90a: with the instructions that only this GPU has
  local found
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
  found=${found//[!0-9]/}
  found=${found:-90}
  [ "$found" -ge 90 ] && found=${found}a
  echo "$found"
}
programs() {
  local cc name status=0 pids=()
  if ! command -v nvcc >/dev/null; then
    echo "no nvcc"
    return 77
  fi
  cc=$(compute_capability)
  for name in conformance micro; do
    rm -f "$work/$name"
    nvcc -std=c++20 -O2 -I"$root" -gencode="arch=compute_$cc,code=sm_$cc" \
      -Xcompiler=-Wall,-Wextra -o "$work/$name" "$root/benchmarks/gpu/$name.cu" &
    pids+=($!)
  done
  for name in "${pids[@]}"; do wait "$name" || status=1; done
  return $status
}
package() {
  rm -rf "$work/site"
  PRNN_CUDA=ON PRNN_CUDA_ARCHS="${PRNN_CUDA_ARCHS:-$(compute_capability)-real}" \
    "$python" -m pip install --no-build-isolation --no-deps --no-compile --target "$work/site" \
    --config-settings=build-dir="$work/cmake" "$root"
}
has_cuda() {
  "$python" -c '
import os

import jax
from prnn_jax import _ffi
targets = getattr(_ffi.native, "cuda_targets", dict)()
print("prnn_jax:", _ffi.native.__file__, "CUDA targets:", sorted(targets))
print("JAX:", jax.__version__, jax.devices())
if os.environ["build"] and not _ffi.native.__file__.startswith(os.environ["work"]):
    raise SystemExit("an editable install hides what was built: uninstall it, or --no-build")
raise SystemExit(0 if targets else 77 if os.environ["smoke"] else 1)'
}
build() {
  local pid of_package=0 of_programs of_cuda
  programs &
  pid=$!
  if [ -n "$build" ]; then package || of_package=1; fi
  wait "$pid"
  of_programs=$?
  has_cuda
  of_cuda=$?
  [ "$of_package" -eq 0 ] || return "$of_package"
  [ "$of_programs" -eq 0 ] || return "$of_programs"
  return "$of_cuda"
}

# ---- the other parts ----

device_program() { # NAME: its rows of JSON
  if [ ! -x "$work/$1" ]; then
    echo "$1 was not built"
    return $([ -n "$smoke" ] && echo 77 || echo 1)
  fi
  "$work/$1" | tee -a "$out/device.jsonl"
  return "${PIPESTATUS[0]}"
}
# By name: others import packages that need not be here.
tests() {
  local files=("$root"/tests/test_{gpu,cuda,cuda_controls}.py) status
  if [ -n "$smoke" ]; then
    "$python" -m pytest -q -m "gpu or cuda" --collect-only "${files[@]}" >"$out/tests.txt" 2>&1
    status=$?
    tail -n 3 "$out/tests.txt"
    return "$status"
  fi
  # No tuning of XLA's own products: a second for each program.
  (cd "$work" && PRNN_REQUIRE_GPU=1 XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_autotune_level=0" \
    "$python" -m pytest -m "gpu or cuda" -p no:cacheprovider \
    --rootdir "$root" -c "$root/pyproject.toml" "${files[@]}") >"$out/tests.txt" 2>&1
  status=$?
  tail -n 30 "$out/tests.txt"
  return "$status"
}
# shellcheck disable=SC2086  # $smoke is one word or none
python_part() { # MODULE FILE
  (cd "$work" && "$python" -m "benchmarks.gpu.$1" $smoke --out "$out/$2.jsonl" \
    --budget "$PART_SECONDS")
}

export -f programs package has_cuda compute_capability build device_program tests python_part
export root out python work smoke build
{
  date
  uname -a
  nvidia-smi 2>&1 || true
  git -C "$root" describe --always --dirty 2>/dev/null
} >>"$log" 2>&1

part build 35 bash -c build
part conformance 8 bash -c 'device_program conformance'
part micro 14 bash -c 'device_program micro'
part tests 25 bash -c tests
part graphs 14 bash -c 'python_part command_buffers checks'
part soak 10 bash -c 'python_part soak checks'
part sanitizers 22 bash -c 'python_part sanitizers checks'
part peers 0 bash -c 'python_part peers peers'

(cd "$root" && timeout 60 "$python" -m benchmarks.gpu.summary "$out") >"$out/summary.md" 2>>"$log" ||
  failed=1
cat "$out/summary.md"
exit "$failed"
