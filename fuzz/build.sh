# To be sourced: builds programs of fuzz/ with coverage. FUZZ_BUILT is where they are.
#
# The flags are those of cargo-fuzz without a sanitizer, which need no nightly compiler. AddressSanitizer would look for
# faults of `unsafe` code, of which these paths have almost none, and cannot follow the coroutines of the simulation.
fuzz_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fuzz_host=$(rustc -vV | sed -n 's/^host: //p')
FUZZ_BUILT=${CARGO_TARGET_DIR:-$fuzz_dir/target}/$fuzz_host/release

build_fuzz_program() { # build_fuzz_program NAME...
    local flags="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4" arg
    for arg in inline-8bit-counters pc-table trace-compares; do
        flags+=" -Cllvm-args=-sanitizer-coverage-$arg"
    done
    RUSTFLAGS=$flags cargo build --release --locked --manifest-path "$fuzz_dir/Cargo.toml" \
        --target "$fuzz_host" "${@/#/--bin=}"
}
