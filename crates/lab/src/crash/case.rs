//! Failing cases as directories: `ops.txt` (the program), `case.txt` (everything else that a replay needs),
//! `report.txt` (the problem), and for crashes `crashed.img` (the image that the last crash left, before any recovery;
//! a sparse file).

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use steadfs_workload::Program;
use thiserror::Error;

use super::explore::{Effort, explore, judge_one};
use super::record::{Injection, record};
use super::trial::try_injection;
use super::{CrashPath, Failure, FreeSpace, Subject};
use crate::device::{Fault, RequestFilter, Survivors};

/// A failing case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Name of the subject.
    pub subject: String,
    /// Seed of the run.
    pub seed: u64,
    /// The program.
    pub program: Program,
    /// The injected faults.
    pub injection: Injection,
    /// The crashes; empty if the run itself fails.
    pub path: CrashPath,
}

/// A directory that does not hold a case.
#[derive(Debug, Error)]
pub enum CaseError {
    /// A file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A file cannot be parsed.
    #[error("{file}: {cause}")]
    Format {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        cause: String,
    },
}

impl Case {
    /// Writes the case and its problem to `dir`.
    ///
    /// # Errors
    /// If the directory cannot be created or written.
    pub fn save(&self, dir: &Path, failure: &Failure) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("ops.txt"), self.program.to_string())?;
        let mut text = format!("subject {}\nseed {}\n", self.subject, self.seed);
        text.push_str(&injection_text(&self.injection));
        for (cut, survivors) in &self.path.crashes {
            text.push_str(&format!("crash {cut} {}\n", survivors_text(survivors)));
        }
        fs::write(dir.join("case.txt"), text)?;
        let report = format!("{}\n\n{}", failure.problem, failure.detail);
        fs::write(dir.join("report.txt"), report)?;
        match &failure.crashed {
            Some(image) => image.save(&dir.join("crashed.img")),
            None => Ok(()),
        }
    }

    /// Reads a case.
    ///
    /// # Errors
    /// If files are missing or cannot be parsed.
    pub fn load(dir: &Path) -> Result<Self, CaseError> {
        let wrong = |cause: String| CaseError::Format {
            file: "case.txt",
            cause,
        };
        let program = fs::read_to_string(dir.join("ops.txt"))?;
        let program = program.parse().map_err(|error| CaseError::Format {
            file: "ops.txt",
            cause: format!("{error}"),
        })?;
        let mut case = Self {
            subject: String::new(),
            seed: 0,
            program,
            injection: Injection::None,
            path: CrashPath::default(),
        };
        for line in fs::read_to_string(dir.join("case.txt"))?.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words.as_slice() {
                ["subject", name] => case.subject = (*name).to_owned(),
                ["seed", number] => {
                    let seed = number.parse();
                    case.seed = seed.map_err(|_| wrong(format!("'{number}' is not a seed")))?;
                }
                ["crash", cut, survivors @ ..] => {
                    let cut = cut
                        .parse()
                        .map_err(|_| wrong(format!("'{cut}' is not a cut")))?;
                    let survivors = parse_survivors(survivors)
                        .ok_or_else(|| wrong(format!("cannot parse the survivors in '{line}'")))?;
                    case.path.crashes.push((cut, survivors));
                }
                ["fault", words @ ..] => {
                    let fault = parse_fault(words)
                        .ok_or_else(|| wrong(format!("cannot parse the fault in '{line}'")))?;
                    match &mut case.injection {
                        Injection::Faults(all) => all.push(fault),
                        others => *others = Injection::Faults(vec![fault]),
                    }
                }
                ["space", words @ ..] => {
                    let free_space = parse_free_space(words)
                        .ok_or_else(|| wrong(format!("cannot parse the free space in '{line}'")))?;
                    case.injection = Injection::Space(free_space);
                }
                [] => {}
                _ => return Err(wrong(format!("cannot parse the line '{line}'"))),
            }
        }
        Ok(case)
    }

    /// Replays the case: first its own crash, then the program's other crashes, because a corrected file system writes
    /// other blocks at other times.
    ///
    /// # Errors
    /// The problem, if it still occurs.
    pub fn replay(&self, subject: &Subject, scratch: &Path) -> Result<(), Box<Failure>> {
        if self.injection != Injection::None {
            let effort = Effort {
                cuts: usize::MAX,
                ..Effort::default()
            };
            let (program, injection) = (&self.program, &self.injection);
            return try_injection(subject, program, self.seed, injection, effort, scratch);
        }
        let run = record(subject, &self.program, self.seed)?;
        judge_one(subject, &run, &self.path, scratch)?;
        let (_, mut failures) = explore(subject, &run, Effort::default(), self.seed, scratch);
        match failures.pop() {
            Some(failure) => Err(Box::new(failure)),
            None => Ok(()),
        }
    }
}

/// One line per fault that a sweep can inject; empty without faults.
fn injection_text(injection: &Injection) -> String {
    match injection {
        Injection::None => String::new(),
        Injection::Faults(faults) => faults
            .iter()
            .map(|(which, fault)| format!("fault {which:?} {}\n", fault_text(fault)))
            .collect(),
        Injection::Space(free_space) => {
            let count = |count: Option<u64>| count.map_or("any".to_owned(), |n| n.to_string());
            format!(
                "space {} {}\n",
                count(free_space.blocks),
                count(free_space.inodes)
            )
        }
    }
}

fn fault_text(fault: &Fault) -> String {
    match fault {
        Fault::Delay(delay) => format!("Delay({}us)", delay.as_micros()),
        others => format!("{others:?}"),
    }
}

fn parse_delay(word: &str) -> Option<Fault> {
    let micros = word.strip_prefix("Delay(")?.strip_suffix("us)")?;
    Some(Fault::Delay(Duration::from_micros(micros.parse().ok()?)))
}

fn parse_fault(words: &[&str]) -> Option<(RequestFilter, Fault)> {
    let [which, fault] = words else { return None };
    let number = |prefix: &str| -> Option<u64> {
        let rest = which.strip_prefix(prefix)?;
        rest.strip_suffix(')')?.parse().ok()
    };
    let which = number("Nth(")
        .map(RequestFilter::Nth)
        .or_else(|| number("From(").map(RequestFilter::From))
        .or_else(|| number("NthFlushing(").map(RequestFilter::NthFlushing))?;
    let fault = match *fault {
        "Fail" => Fault::Fail,
        "LoseCache" => Fault::LoseCache,
        "Misreport" => Fault::Misreport,
        "LostFlush" => Fault::LostFlush,
        others => parse_delay(others)?,
    };
    Some((which, fault))
}

fn parse_free_space(words: &[&str]) -> Option<FreeSpace> {
    let count = |word: &str| match word {
        "any" => Some(None),
        number => number.parse().ok().map(Some),
    };
    let [blocks, inodes] = words else { return None };
    Some(FreeSpace {
        blocks: count(blocks)?,
        inodes: count(inodes)?,
    })
}

fn survivors_text(survivors: &Survivors) -> String {
    let flags = |flags: &[bool]| -> String {
        let digits = flags.iter().map(|flag| if *flag { '1' } else { '0' });
        digits.collect()
    };
    match survivors {
        Survivors::None => "none".to_owned(),
        Survivors::All => "all".to_owned(),
        Survivors::Seeded(seed) => format!("seeded {seed}"),
        Survivors::Changes(kept) => format!("changes {}", flags(kept)),
        Survivors::Units(kept) => format!("units {}", flags(kept)),
    }
}

fn parse_survivors(words: &[&str]) -> Option<Survivors> {
    let flags = |digits: &str| -> Option<Vec<bool>> {
        let flag = |digit| match digit {
            '0' => Some(false),
            '1' => Some(true),
            _ => None,
        };
        digits.chars().map(flag).collect()
    };
    Some(match words {
        ["none"] => Survivors::None,
        ["all"] => Survivors::All,
        ["seeded", seed] => Survivors::Seeded(seed.parse().ok()?),
        // Without undecided changes or units there are no flags.
        ["changes"] => Survivors::Changes(Vec::new()),
        ["units"] => Survivors::Units(Vec::new()),
        ["changes", kept] => Survivors::Changes(flags(kept)?),
        ["units", kept] => Survivors::Units(flags(kept)?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Problem;
    use super::*;

    #[test]
    fn injections_round_trip_as_text() {
        let faults = [
            (RequestFilter::Nth(3), Fault::Fail),
            (RequestFilter::From(70), Fault::Misreport),
            (RequestFilter::NthFlushing(0), Fault::LoseCache),
            (RequestFilter::From(2), Fault::LostFlush),
            (
                RequestFilter::Nth(9),
                Fault::Delay(Duration::from_millis(16)),
            ),
        ];
        for fault in faults {
            let text = injection_text(&Injection::Faults(vec![fault.clone()]));
            let words: Vec<_> = text.split_ascii_whitespace().collect();
            assert_eq!((words[0], parse_fault(&words[1..])), ("fault", Some(fault)));
        }
        assert_eq!(parse_fault(&["Nth(x)", "Fail"]), None);
        assert_eq!(parse_fault(&["Nth(1)", "Delay(16ms)"]), None);
        let free_space = FreeSpace {
            blocks: Some(7),
            inodes: None,
        };
        assert_eq!(
            injection_text(&Injection::Space(free_space)),
            "space 7 any\n"
        );
        assert_eq!(parse_free_space(&["7", "any"]), Some(free_space));
        assert_eq!(parse_free_space(&["7"]), None);
    }

    #[test]
    fn a_case_with_several_faults_is_kept_and_read() {
        let name = format!("steadfs-case-{:016x}", steadfs_rt::random_u64());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        let delay = |ms| Fault::Delay(Duration::from_millis(ms));
        let several = vec![
            (RequestFilter::Nth(7), delay(16)),
            (RequestFilter::Nth(9), delay(1024)),
        ];
        let case = Case {
            subject: "toy".to_owned(),
            seed: 5,
            program: "create /f 644\n".parse().unwrap(),
            injection: Injection::Faults(several),
            path: CrashPath::default(),
        };
        let failure = Failure::of_run(Problem::Sync(steadfs_vfs::FsError::NoSpace));
        case.save(&dir, &failure).unwrap();
        let read = Case::load(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!((read.injection, read.seed), (case.injection, case.seed));
    }

    #[test]
    fn survivors_are_written_and_read() {
        let all = [
            Survivors::None,
            Survivors::All,
            Survivors::Seeded(77),
            Survivors::Changes(vec![true, false]),
            Survivors::Units(Vec::new()),
        ];
        for survivors in all {
            let text = survivors_text(&survivors);
            let words: Vec<_> = text.split_ascii_whitespace().collect();
            assert_eq!(parse_survivors(&words), Some(survivors));
        }
        assert_eq!(parse_survivors(&["some"]), None);
        assert_eq!(parse_survivors(&["units", "012"]), None);
    }
}
