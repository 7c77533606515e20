//! What the pages of the manual have in addition to the help.

/// An example for each page, by its name.
pub const EXAMPLES: &[(&str, (&str, &str))] = &[
    (
        "steadfs-lab",
        (
            "steadfs lab all --quick",
            "All experiments as a smoke test.",
        ),
    ),
    (
        "steadfs-lab-crash",
        (
            "steadfs lab crash --seeds 100",
            "Cuts the power at every point of 100 random programs on each kind of volume.",
        ),
    ),
    (
        "steadfs-lab-faults",
        (
            "steadfs lab faults",
            "Each kind of fault in every short program.",
        ),
    ),
    (
        "steadfs-lab-trace",
        (
            "steadfs lab trace fsync",
            "The locks, waits and I/O of one fsync.",
        ),
    ),
    (
        "steadfs-lab-trace-fsync",
        (
            "steadfs lab trace fsync --fs f2fs --of append",
            "The same on f2fs, of a file that grew.",
        ),
    ),
    (
        "steadfs-lab-checkpoint-merge",
        (
            "steadfs lab checkpoint-merge --seeds 3",
            "Measured and published figures side by side.",
        ),
    ),
    (
        "steadfs-lab-gc-victims",
        ("steadfs lab gc-victims --json", "The report for a program."),
    ),
    (
        "steadfs-lab-async-checkpoint",
        (
            "steadfs lab async-checkpoint --quick",
            "A smoke test of the experiment.",
        ),
    ),
    (
        "steadfs-lab-urgent-writeback",
        (
            "steadfs lab urgent-writeback --real",
            "Also in real time, on a FUSE mount.",
        ),
    ),
    (
        "steadfs-lab-all",
        (
            "steadfs lab all --html report.html",
            "All experiments on one page.",
        ),
    ),
];

/// Exit codes and their meanings.
pub const CODES: &[(&str, &str)] = &[
    (
        "0",
        "everything was done, and no fault of steadfs was found",
    ),
    ("1", "it failed, or steadfs is at fault; messages say what"),
    (
        "2",
        "the command line was not understood, or a resource of the system is missing",
    ),
    ("128+N", "signal N ended it"),
];

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[test]
    fn examples_are_understood() {
        for (name, (line, _)) in super::EXAMPLES {
            let words = line.split(' ').skip(1);
            let parsed = crate::args::Args::try_parse_from(words);
            assert!(parsed.is_ok(), "{name}: {line}: {parsed:?}");
        }
    }
}
