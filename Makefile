# Two commands matter: `make run` (see it work) and `make test` (every judge).
# They run as root on a fresh Debian 12 machine; both install what they need.

SHELL := /bin/bash
# Where rustup installs cargo, which may happen while make runs.
export PATH := $(HOME)/.cargo/bin:$(PATH)
JUDGES := $(CURDIR)/.cache/judges/bin

PREFIX ?= /usr/local
# The only directory in which mount(8) and umount(8) look for helpers, for any prefix.
HELPERDIR ?= /sbin
# What is installed.
BUILT ?= target/release

.PHONY: help build install dist wheel uninstall run book try-book bench bench-offline crash fuzz miri mutants test lint deny publish-check msrv other-hosts judges fmt clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## steadfs and its laboratory steadfs-lab, optimised
	@scripts/install-build
	cargo build --release --locked -p steadfs-cli -p steadfs-lab-cli --bins --examples

install: ## programs, mount helpers, manual, completions; takes PREFIX (/usr/local) and DESTDIR
	@missing=; for built in steadfs steadfs-lab examples/manual examples/lab-manual; do \
		[ -x "$(BUILT)/$$built" ] || missing=$$built; done; \
		[ -z "$$missing" ] || $(MAKE) --no-print-directory build
	@scripts/install-program install "$(BUILT)" "$(DESTDIR)" "$(PREFIX)" "$(HELPERDIR)"

dist: ## a static program with all that belongs to it, as a tar archive and a Debian package, in target/packages
	@scripts/install-build
	@scripts/dist

wheel: ## the Python package (crates/python) as a wheel, in target/packages
	@scripts/install-build
	@scripts/install-packages python3
	@scripts/wheel

uninstall: ## removes what install installed; takes the same PREFIX and DESTDIR
	@scripts/install-program uninstall "$(BUILT)" "$(DESTDIR)" "$(PREFIX)" "$(HELPERDIR)"

run: build ## the main job on real input: make, mount, fill, kill, replay, compare, e2fsck
	@scripts/install-packages e2fsprogs fuse3 diffutils
	@scripts/prepare-kernel
	@scripts/story target/release/steadfs

book: ## the book (docs/book) with its reference, in target/book
	@scripts/install-build
	@scripts/book

try-book: build ## runs the commands that the book's tasks show, and compares what they print
	@scripts/install-packages e2fsprogs fuse3 fio nbdkit qemu-utils fdisk procps python3
	@scripts/judge-sqlite
	@scripts/try-book target/release/steadfs

judges: ## installs the independent judges of the tests
	@scripts/install-build
	@scripts/install-judges

test: judges ## everything: unit tests, mounted tests, judges
	@scripts/prepare-kernel
	PATH="$(JUDGES):$$PATH" scripts/test

BENCH ?=
bench: ## kernel ext4, fuse2fs and steadfs (ext4, f2fs) side by side (BENCH="--quick --only fs_mark")
	@scripts/install-build
	@scripts/install-packages e2fsprogs f2fs-tools fio fsmark fuse2fs fuse3 util-linux
	@scripts/prepare-kernel
	cargo build --release --locked -p steadfs-cli -p steadfs-bench
	cargo build --release --locked -p steadfs-fuse --example floor
	target/release/steadfs-bench $(BENCH)

ROUNDS ?= 5
bench-offline: ## commands on images beside those of e2fsprogs and f2fs-tools, ROUNDS (5) in turn
	@scripts/install-build
	@scripts/install-packages e2fsprogs f2fs-tools p7zip-full perl-base tar time
	cargo build --release --locked -p steadfs-cli
	@scripts/bench-offline $(ROUNDS)

SEEDS ?= 2000
TRIAL ?=
crash: build ## explores crashes of the core programs and SEEDS random ones on each kind of volume; TRIAL=--faults or --space
	@scripts/install-packages e2fsprogs f2fs-tools
	target/release/steadfs-lab crash --seeds $(SEEDS) $(TRIAL)

HOURS ?= 1
fuzz: ## fuzzes every target by coverage, HOURS in all, on JOBS processes (1); findings go to fuzz/artifacts
	@scripts/fuzz $(HOURS)

miri: ## interprets the unsafe code of buffers, which detects undefined behaviour (nightly Rust, by rustup)
	@scripts/miri

CRATE ?= jbd2
FILTER ?=
mutants: ## judges the tests of crates/CRATE (jbd2) by mutants of it, of the files that match FILTER (all)
	@scripts/mutants $(CRATE) $(FILTER)

MSRV = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
lint: ## formatting and lints, warnings are errors
	@scripts/install-build lint
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@echo "cargo check -p steadfs --no-default-features"; set -o pipefail; cargo check --quiet --locked -p steadfs --no-default-features 2>&1 | { ! grep .; }
	cargo clippy --manifest-path mutants/Cargo.toml --target-dir "$${CARGO_TARGET_DIR:-target}/mutants-tool" --all-targets --locked -- -D warnings
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo fmt --check --manifest-path mutants/Cargo.toml
	@cargo tree --quiet --locked --manifest-path fuzz/Cargo.toml >/dev/null # its lock file is current

deny: ## licences, versions, sources and advisories of all dependencies, by cargo-deny
	@scripts/install-build
	@scripts/deny

publish-check: ## packages each crate of the registry, builds it from its package, and uploads nothing (10 minutes)
	@scripts/install-build
	cargo publish --workspace --dry-run --locked

msrv: ## checks that the oldest Rust that Cargo.toml names compiles all programs (by rustup)
	@scripts/install-build
	rustup toolchain install "$(MSRV)" --profile minimal
	cargo "+$(MSRV)" check --workspace --locked --target-dir "$${CARGO_TARGET_DIR:-target}/msrv"

OTHER_HOSTS = aarch64-apple-darwin x86_64-unknown-freebsd x86_64-pc-windows-gnu aarch64-unknown-linux-musl
other-hosts: ## checks that the library without features compiles for other hosts (by rustup)
	@scripts/install-build
	rustup target add $(OTHER_HOSTS)
	set -o pipefail; for host in $(OTHER_HOSTS); do \
		cargo check --quiet --locked -p steadfs --no-default-features --target "$$host" 2>&1 | { ! grep .; } || exit 1; done

fmt: ## formats the sources
	cargo fmt
	cargo fmt --manifest-path fuzz/Cargo.toml
	cargo fmt --manifest-path mutants/Cargo.toml

clean: ## removes build results and caches
	rm -rf target .cache fuzz/target
