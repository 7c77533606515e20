//! Runs the tests on each mutant.
//!
//! Rule: a test judges a mutant only if it executes the mutated code, which a first run of each test records. Tests run
//! in the order of their duration, until one fails, and the quick ones on all mutants first. A test that takes
//! [`CPU_FACTOR`] times its CPU time, or in which no thread runs for [`STUCK`], has failed, too.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::build::Program;

/// CPU time that a test may take, in its CPU time without a mutant.
const CPU_FACTOR: u64 = 10;
/// The least limit of a test's CPU time, in seconds.
const CPU_SECONDS_MIN: u64 = 4;
/// A process in which no thread runs for this long waits for itself.
const STUCK: Duration = Duration::from_secs(8);

/// A test, and the mutants that it executes.
#[derive(Debug)]
pub struct Test {
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
    /// CPU time without a mutant, in seconds.
    pub seconds: u64,
    /// Wall time without a mutant, by which tests are ordered.
    duration: Duration,
    pub reaches: BTreeSet<u32>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Passed,
    Failed,
    Stuck,
}

/// Lists the tests of `programs`, runs each, and records in the file `table` what it executes; the quickest first. Tests
/// whose names have a part of `skip`, and those that take longer than `longest`, do not judge.
///
/// # Errors
/// A program cannot be started.
pub fn tests(
    programs: &[Program],
    table: &Path,
    skip: &[&str],
    longest: Duration,
) -> io::Result<Vec<Test>> {
    let mut tests = Vec::new();
    for program in programs {
        let list = Command::new(&program.path)
            .args(["--list", "--format", "terse"])
            .current_dir(&program.folder)
            .output()?;
        for line in String::from_utf8_lossy(&list.stdout).lines() {
            if let Some(name) = line.strip_suffix(": test")
                && !skip.iter().any(|part| name.contains(part))
            {
                tests.push(Test {
                    name: name.to_owned(),
                    program: program.path.clone(),
                    folder: program.folder.clone(),
                    seconds: 600,
                    duration: Duration::ZERO,
                    reaches: BTreeSet::new(),
                });
            }
        }
    }
    if !read_table(table, programs, &mut tests)? {
        record(&mut tests, &table.with_extension("reached"))?;
        write_table(table, &tests)?;
    }
    tests.retain(|test| !test.reaches.is_empty() && test.duration <= longest);
    tests.sort_by_key(|test| test.duration);
    Ok(tests)
}

/// Runs each test and records what it executes, by means of the file `reached`. One that fails does not judge.
fn record(tests: &mut [Test], reached: &Path) -> io::Result<()> {
    for test in tests {
        std::fs::write(reached, "")?;
        let began = Instant::now();
        let (end, cpu) = test.run(("MUTANT_REACHED", reached.as_os_str()))?;
        if end != End::Passed {
            eprintln!(
                "does not judge, as it fails without a mutant: {}",
                test.name
            );
            test.reaches.clear();
            continue;
        }
        (test.duration, test.seconds) = (began.elapsed(), cpu.as_secs() + 1);
        let text = std::fs::read_to_string(reached)?;
        test.reaches = text.lines().filter_map(|line| line.parse().ok()).collect();
    }
    Ok(())
}

/// Keeps what was recorded for the next run.
fn write_table(table: &Path, tests: &[Test]) -> io::Result<()> {
    let line = |test: &Test| {
        let reaches: Vec<_> = test.reaches.iter().map(u32::to_string).collect();
        let (name, seconds, ms) = (&test.name, test.seconds, test.duration.as_millis());
        format!("{name}\t{seconds}\t{ms}\t{}\n", reaches.join(" "))
    };
    std::fs::write(table, tests.iter().map(line).collect::<String>())
}

/// Reads what a run of the same programs has recorded; returns whether there is such a record.
fn read_table(table: &Path, programs: &[Program], tests: &mut [Test]) -> io::Result<bool> {
    let Ok(written) = std::fs::metadata(table).and_then(|table| table.modified()) else {
        return Ok(false);
    };
    for program in programs {
        if std::fs::metadata(&program.path)?.modified()? > written {
            return Ok(false);
        }
    }
    let text = std::fs::read_to_string(table)?;
    for (test, line) in tests.iter_mut().zip(text.lines()) {
        let mut fields = line.split('\t');
        let number = |field: Option<&str>| field.and_then(|n| n.parse().ok()).unwrap_or(0);
        if fields.next() != Some(&test.name) {
            return Ok(false);
        }
        test.seconds = number(fields.next());
        test.duration = Duration::from_millis(number(fields.next()));
        let ids = fields.next().unwrap_or_default().split(' ');
        test.reaches = ids.filter_map(|id| id.parse().ok()).collect();
    }
    Ok(tests.len() == text.lines().count())
}

impl Test {
    /// Runs the test with a mutant.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn judge(&self, id: u32) -> io::Result<End> {
        let id = id.to_string();
        Ok(self.run(("MUTANT", id.as_ref()))?.0)
    }

    fn run(&self, (name, value): (&str, &std::ffi::OsStr)) -> io::Result<(End, Duration)> {
        let limit = CPU_SECONDS_MIN.max(self.seconds * CPU_FACTOR).to_string();
        let mut child = Command::new("bash")
            .args(["-c", r#"ulimit -c 0 -t "$0"; exec "$@""#, &limit])
            .arg(&self.program)
            .args(["--exact", &self.name, "--test-threads=1", "-q"])
            .current_dir(&self.folder)
            .env(name, value)
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        wait(&mut child)
    }
}

/// Waits for the end of a process, which is killed if no thread runs any more. Also the CPU time that was seen last.
fn wait(child: &mut Child) -> io::Result<(End, Duration)> {
    let mut pause = Duration::from_millis(1);
    // Pauses are added up: while a signal has stopped both processes, no time passes.
    let (mut cpu, mut idle) = (Duration::ZERO, Duration::ZERO);
    loop {
        if let Some(status) = child.try_wait()? {
            let end = if status.success() {
                End::Passed
            } else {
                End::Failed
            };
            return Ok((end, cpu));
        }
        let (used, runs) = activity(child.id());
        if runs || used != cpu {
            (cpu, idle) = (used.max(cpu), Duration::ZERO);
        } else if idle > STUCK {
            child.kill()?;
            child.wait()?;
            return Ok((End::Stuck, cpu));
        }
        std::thread::sleep(pause);
        idle += pause;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// CPU time of a process, and whether one of its threads is running, waits for a CPU or is stopped
/// (proc_pid_stat(5)).
fn activity(pid: u32) -> (Duration, bool) {
    let (mut ticks, mut runs) = (0, false);
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
    {
        let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
        let stat = stat.unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let fields: Vec<_> = fields.split_whitespace().collect();
        runs |= fields
            .first()
            .is_some_and(|state| *state == "R" || *state == "T");
        let time = fields.get(11..13).unwrap_or_default();
        ticks += time
            .iter()
            .filter_map(|n| n.parse::<u64>().ok())
            .sum::<u64>();
    }
    (Duration::from_millis(ticks * 10), runs)
}
