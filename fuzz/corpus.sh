#!/usr/bin/env bash
# Makes the first inputs of every target in DIR (default: fuzz/corpus), COUNT of each; what was found before is kept.
# The volumes that inputs edit are made by mke2fs and mkfs.f2fs when a target starts: the matrices of their features
# are in suite/src/hostile/base.rs and suite/src/fuzz/f2fs_bases.rs.
# usage: fuzz/corpus.sh [DIR [COUNT]]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(realpath -m "${1:-$here/corpus}")
# shellcheck source=fuzz/build.sh
. "$here/build.sh"
build_fuzz_program seeds
FUZZ_SEED_DIR=$dir FUZZ_SEED_COUNT=${2:-200} "$FUZZ_BUILT/seeds" -runs=0 2>/dev/null
