#!/usr/bin/env bash
# The short GPU tests under NVIDIA's compute-sanitizer, which comes with the CUDA toolkit:
# accesses outside of memory first, then races between threads of a block.
# Usage: tests/gpu/sanitize.sh [PYTHON [ARGUMENTS OF PYTEST]]
set -euo pipefail
cd "$(dirname "$0")/../.."

python="${1:-python3}"
shift || true
if ! command -v compute-sanitizer >/dev/null; then
  echo "error: compute-sanitizer is not on the path; it comes with the CUDA toolkit" >&2
  exit 2
fi
# An allocation of its own for each tensor, so that what lies beside it is out of bounds.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
for tool in memcheck racecheck; do
  echo "== $tool"
  # A recorded step needs the caching allocator.
  compute-sanitizer --tool "$tool" --error-exitcode 1 --print-limit 20 --target-processes all \
    "$python" -m pytest -q -x -p no:cacheprovider tests/gpu \
    -k "small and not recorded and not float16" "$@"
done
