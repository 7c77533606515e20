//! fs_mark: four threads make small files and sync them in seven ways.

use crate::Result;
use crate::activity_run::ActivityRun;
use crate::command::{output, program};

/// One run with `-S MODE`.
pub fn run<const MODE: usize>(run: &mut ActivityRun) -> Result<()> {
    let [unsynced, synced] = run.size().marks;
    let files = if MODE == 0 { unsynced } else { synced };
    let root = run.root();
    std::fs::create_dir(root.join("d"))?;
    let mut fs_mark = program("fs_mark");
    // A relative path: one longer than about 34 characters overruns a buffer of fs_mark.
    fs_mark.current_dir(&root);
    fs_mark.args(["-d", "d", "-t", "4", "-s", "4096", "-w", "4096"]);
    // Its log would otherwise be written to the volume.
    fs_mark.args(["-l", "/dev/null"]);
    fs_mark.args(["-S", &MODE.to_string(), "-n", &files.to_string()]);
    let result = match output(&mut fs_mark) {
        Err(error) if is_name_collision(&error.to_string()) => {
            eprintln!("fs_mark {MODE} again: {error}");
            std::fs::remove_dir_all(root.join("d"))?;
            std::fs::create_dir(root.join("d"))?;
            output(&mut fs_mark)?
        }
        result => result?,
    };
    run.record(KEYS[MODE], files_per_second(&result)?);
    Ok(())
}

/// Whether two of its processes may have chosen the same names. It derives them from the microsecond at which a process
/// starts. If two share it, one finds its files removed by the other (5 of 6000 runs on tmpfs), when it opens one to
/// sync it or when it removes it. A volume that has lost a file looks the same, but chance does not repeat in the next
/// run.
fn is_name_collision(error: &str) -> bool {
    let met = ["Error in open of", "Error in unlink of"];
    met.iter().any(|what| error.contains(what)) && error.contains("No such file or directory")
}

/// The rows of the modes.
const KEYS: [&str; 7] = [
    "fs_mark 0",
    "fs_mark 1",
    "fs_mark 2",
    "fs_mark 3",
    "fs_mark 4",
    "fs_mark 5",
    "fs_mark 6",
];

/// The fourth column of the only line of numbers.
fn files_per_second(result: &str) -> Result<f64> {
    result
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_ascii_whitespace().nth(3)?.parse().ok())
        .next_back()
        .ok_or_else(|| format!("fs_mark printed no rate: {result}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_table_is_understood() {
        let result = "#\tVersion 3.3\n\nFSUse%        Count         Size    Files/sec     App Overhead\n    \
                    75           80         4096       6802.5              467\n";
        assert_eq!(files_per_second(result).unwrap(), 6802.5);
        assert!(files_per_second("#").is_err());
    }

    #[test]
    fn only_a_file_that_is_gone_lets_it_run_again() {
        assert!(is_name_collision(
            "exit status: 1: Error in open of d//6b03b0b6~63RL : No such file or directory"
        ));
        assert!(is_name_collision(
            "exit status: 1: Error in unlink of d//6b04269d~U5ED : No such file or directory"
        ));
        assert!(!is_name_collision(
            "Error in creat: No space left on device"
        ));
        assert!(!is_name_collision(
            "Error in open of d//6b03b0b6~63RL : Input/output error"
        ));
    }
}
