#!/usr/bin/env bash
# All that must be seen on a GPU, without a network: in one command, or in stages of at most ten
# minutes each.
#
#   benchmarks/gpu_campaign.sh [--stage N] [--out DIR] [--budget SECONDS] [--parts LIST]
#                              [--no-build] [--smoke]
#
#   stage 1  build        the package with CUDA for this GPU, and the programs
#            conformance  every function of cuda/ptx.h against its definition
#            engine       every kernel against a naive run on the host, without JAX
#            segments     cycles of each part of a step, by the clock
#            sanitizers   the same under memcheck, racecheck, synccheck, initcheck
#   stage 2  micro        the constants of the planner's model
#            plans        every plan that the planner considers, timed
#   stage 3  tests        the tests that run on a GPU; none may be skipped for want of one
#            graphs       capture in CUDA graphs, independent calls, Python threads
#   stage 4  peers        µs per step: ours, lax.scan, cuDNN through JAX, torch.nn; in all the time
#   stage 5  soak         100 000 steps beside other work, each call bitwise as the first
#
# Each part has a limit, its share of the budget; one that fails or hangs costs itself only. DIR
# (default: $OUT, or gpu_results) gets at most eight files: *.jsonl with a row for everything
# measured, log.txt, tests.txt, summary.md. What other parts have left there stays, so that stages
# add up and one can be repeated.
#
# What is built lies in build/gpu_campaign/carried: made elsewhere with `--parts build` (by a Python
# of 3.12 or later for all such, PRNN_CUDA_ARCHS=90a-real) and copied here, it is taken as it is,
# unless sources have changed. --no-build takes the package that is installed; --smoke tries all
# scripts with tiny sizes on a machine without a GPU. PYTHON names the interpreter. Ends with 0 only
# if every part did what it should.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${OUT:-gpu_results} budget=540 smoke="" build=1 parts="" stage=""
stages=(build,conformance,engine,segments,sanitizers micro,plans tests,graphs peers soak)
all=build,conformance,engine,segments,sanitizers,micro,plans,tests,graphs,soak,peers
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift ;;
    --budget) budget=$2; shift ;;
    --parts) parts=$2; shift ;;
    --stage) stage=$2; shift ;;
    --no-build) build="" ;;
    --smoke) smoke=--smoke build="" ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done
if [ -n "$stage" ]; then
  case $stage in
    [1-5]) parts=${stages[stage - 1]} ;;
    *) echo "gpu_campaign: stages are 1 to 5, not $stage" >&2; exit 2 ;;
  esac
fi
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
carried=$work/carried
mkdir -p "$work"
log=$out/log.txt
failed=0

# The installed package before the repository, which is there for `benchmarks`.
if [ -n "$build" ]; then
  export PYTHONPATH=$carried/site:$root${PYTHONPATH:+:$PYTHONPATH}
else
  export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$root
fi
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false  # several processes, and torch beside JAX
[ -n "$smoke" ] && export JAX_PLATFORMS=cpu

now() { date +%s.%N; }
began=$(now)
left() { awk -v b="$began" -v n="$(now)" -v t="$budget" 'BEGIN { printf "%d", t - (n - b) }'; }

# The rows of a part that has run before.
forget() { # FIELD VALUE
  local file
  for file in "$out"/*.jsonl; do
    [ -e "$file" ] && sed -i "/\"$1\": \"$2\"/d" "$file"
  done
}
# part NAME SHARE COMMAND...: SHARE of 100 of what the chosen parts share, at most; 0 is all that
# is left.
part() {
  local name=$1 share=$2 limit status seconds start
  shift 2
  forget name "$name"
  case $name in graphs) forget part command_buffers ;; *) forget part "$name" ;; esac
  limit=$(left)
  limit=$((limit - 8))  # for the summary
  if [ "$share" -gt 0 ] && [ $((budget * share / shares)) -lt "$limit" ]; then
    limit=$((budget * share / shares))
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
digest() { # of all that is built
  (cd "$root" && find core cpu cuda ffi prnn_jax benchmarks/gpu tests/native tests/emulator \
    CMakeLists.txt pyproject.toml -type f ! -path "benchmarks/*.py" ! -name "*.pyc" -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
}
package() {
  local of
  of=$(digest)
  rm -rf "$carried"
  mkdir -p "$carried"
  PRNN_CUDA=ON PRNN_CUDA_ARCHS="${PRNN_CUDA_ARCHS:-$(compute_capability)-real}" \
    "$python" -m pip install --no-build-isolation --no-deps --no-compile \
    --target "$carried/site" --config-settings=build-dir="$work/cmake" \
    --config-settings=cmake.define.PRNN_CUDA_PROGRAMS=ON "$root" || return
  cp -r "$work/cmake/programs" "$carried/" && echo "$of" >"$carried/digest"
}
has_cuda() {
  "$python" -c '
import os

import jax
from prnn_jax._engine import modules
targets = modules.cuda.cuda_targets() if modules.cuda else {}
print("prnn_jax:", modules.native.__file__, "CUDA targets:", sorted(targets))
print("JAX:", jax.__version__, jax.devices())
if os.environ["build"] and not modules.native.__file__.startswith(os.environ["carried"]):
    raise SystemExit("an editable install hides what was built: uninstall it, or --no-build")
raise SystemExit(0 if targets else 77 if os.environ["smoke"] else 1)'
}
build() {
  if [ -n "$build" ] && [ "$(cat "$carried/digest" 2>&1)" != "$(digest)" ]; then
    package || return
  fi
  has_cuda
}

# ---- the other parts ----

device_program() { # NAME ARGUMENT...: its rows of JSON
  local program=$carried/programs/$1
  shift
  if [ ! -x "$program" ]; then
    echo "$program was not built"
    return $([ -n "$smoke" ] && echo 77 || echo 1)
  fi
  "$program" "$@" | tee -a "$out/device.jsonl"
  return "${PIPESTATUS[0]}"
}
engine() { # and once more with NaN
  local small="cases=*-T3-B3-*" status=0
  if [ -n "$smoke" ]; then
    device_program check_device "$small-H4?" runs=1
    return
  fi
  device_program check_device steps=100000 "seconds=$((PART_SECONDS * 3 / 4))" || status=$?
  device_program check_device "$small" input=nan "seconds=$((PART_SECONDS / 4))" || status=$?
  return "$status"
}
# By name: others import packages that need not be here.
tests() {
  local files=("$root"/tests/test_{gpu,cuda,cuda_controls,cuda_stack,cuda_elementwise}.py) status
  if [ -n "$smoke" ]; then
    "$python" -m pytest -q -m "gpu or cuda" --collect-only "${files[@]}" >"$out/tests.txt" 2>&1
    status=$?
    tail -n 3 "$out/tests.txt"
    return "$status"
  fi
  local workers=()  # most of the time goes into compiling
  "$python" -c "import xdist" 2>/dev/null && workers=(-n 8)
  # No tuning of XLA's own products: a second for each program.
  (cd "$work" && PRNN_REQUIRE_GPU=1 XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_autotune_level=0" \
    "$python" -m pytest -m "gpu or cuda" -p no:cacheprovider "${workers[@]}" \
    --rootdir "$root" -c "$root/pyproject.toml" "${files[@]}") >"$out/tests.txt" 2>&1
  status=$?
  tail -n 30 "$out/tests.txt"
  return "$status"
}
# shellcheck disable=SC2086  # $smoke is one word or none
python_part() { # MODULE FILE OPTION...
  (cd "$work" && "$python" -m "benchmarks.gpu.$1" $smoke --out "$out/$2.jsonl" \
    --budget "$PART_SECONDS" "${@:3}")
}

export -f digest package has_cuda compute_capability build device_program engine tests python_part
export root out python work carried smoke build
{
  date
  uname -a
  nvidia-smi 2>&1 || true
  git -C "$root" describe --always --dirty 2>/dev/null
} >>"$log" 2>&1

share_of() { # what a part may take of the time that parts share
  case $1 in
    build | peers) echo 30 ;; tests) echo 25 ;; sanitizers) echo 20 ;; plans) echo 16 ;;
    micro | graphs) echo 14 ;; engine | soak) echo 10 ;; conformance | segments) echo 5 ;;
  esac
}
command_of() {
  case $1 in
    build | engine | tests) echo "$1" ;;
    conformance | micro) echo "device_program $1" ;;
    segments) echo "device_program segments ${smoke#--}" ;;
    plans) echo "device_program plans \$PART_SECONDS ${smoke#--}" ;;
    graphs) echo "python_part command_buffers checks" ;;
    soak) echo "python_part soak checks" ;;
    sanitizers) echo "python_part sanitizers checks --program '$carried/programs/check_device'" ;;
    peers) echo "python_part peers peers" ;;
  esac
}
shares=0
for name in ${parts//,/ }; do shares=$((shares + $(share_of "$name"))); done
for name in ${parts//,/ }; do
  share=$(share_of "$name")
  [ "$name" = "${parts##*,}" ] && share=0  # the last one has all that is left
  part "$name" "$share" bash -c "$(command_of "$name")"
done

(cd "$root" && timeout 60 "$python" -m benchmarks.gpu.summary "$out") >"$out/summary.md" 2>>"$log" ||
  failed=1
cat "$out/summary.md"
exit "$failed"
