//! Corrupt volumes through the library, 2000 of each kind: no panic, no hang, no access outside the device, no memory
//! beyond the budget, and no silent loss of acknowledged data.
//!
//! `HOSTILE=flipped:ext4-1k:17` runs one case, and writes its image to the file `HOSTILE_IMAGE` if that is set;
//! `HOSTILE_CASES=100000` runs more of them. With `HOSTILE_E2FSCK=1` e2fsck checks each image, and disagreements with
//! our checker are printed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use steadfs_lab::device::Image;
use steadfs_suite::hostile::meter::Meter;
use steadfs_suite::hostile::{Base, Family, Outcome, exercise, save};
use steadfs_suite::run as run_judge;

#[global_allocator]
static METER: Meter = Meter;

/// Cases of each family.
const CASES: u64 = 2000;
/// Threads they run on.
const THREADS: usize = 2;
/// Longest time of one case: more than 1000 times the usual.
const LIMIT: Duration = Duration::from_secs(300);
/// Largest memory of one case: caches of 4 MiB, at most 32 MiB of the checker, and the image.
const BUDGET: usize = 48 << 20;

/// The running cases, for the watchdog.
struct Running {
    what: Mutex<Vec<Option<(String, Instant)>>>,
}

impl Running {
    fn set(&self, thread: usize, what: Option<String>) {
        self.what.lock().unwrap()[thread] = what.map(|what| (what, Instant::now()));
    }

    /// Aborts the program if a case hangs: a thread that loops cannot be stopped otherwise.
    fn watch(self: &Arc<Self>) {
        let this = Arc::clone(self);
        thread::spawn(move || {
            loop {
                thread::sleep(Duration::from_secs(1));
                for (what, since) in this.what.lock().unwrap().iter().flatten() {
                    if since.elapsed() > LIMIT {
                        eprintln!("{what} hangs");
                        std::process::abort();
                    }
                }
            }
        });
    }
}

#[derive(Default)]
struct Totals {
    cases: u64,
    mounted: [u64; 2],
    corrupt: u64,
    reported: u64,
    lost: u64,
    peak: (usize, String),
    failures: Vec<String>,
}

impl Totals {
    fn add(&mut self, name: &str, outcome: Outcome) {
        self.cases += 1;
        for (total, one) in self.mounted.iter_mut().zip(outcome.mounted) {
            *total += u64::from(one);
        }
        self.corrupt += u64::from(outcome.corrupt);
        self.reported += u64::from(outcome.reported);
        self.lost += u64::from(outcome.lost);
        if outcome.peak > self.peak.0 {
            self.peak = (outcome.peak, name.to_owned());
        }
        if outcome.peak > BUDGET {
            let failure = format!("{name}: {} bytes of memory", outcome.peak);
            self.failures.push(failure);
        }
        for violation in outcome.violations {
            self.failures.push(format!("{name}: {violation}"));
        }
    }

    /// Prints the totals and checks them. The corruption must be neither so coarse that nothing mounts nor so fine that
    /// nothing is found.
    fn check(&self, family: Family, cases: u64) {
        println!(
            "{}: {} cases, {} mounted ro, {} rw, {} corrupt, {} reported, {} lost synced data, \
             peak {} KiB in {}",
            family.name(),
            self.cases,
            self.mounted[0],
            self.mounted[1],
            self.corrupt,
            self.reported,
            self.lost,
            self.peak.0 >> 10,
            self.peak.1,
        );
        assert!(
            self.failures.is_empty(),
            "{} failures:\n{}",
            self.failures.len(),
            self.failures.join("\n")
        );
        assert_eq!(self.cases, cases);
        let mounted = self.mounted[0];
        assert!(mounted * 20 > cases, "too few images can be mounted");
        assert!(self.corrupt * 4 > cases, "too few images are corrupt");
    }
}

fn case(bases: &[Base], family: Family, n: u64) -> (String, Outcome) {
    let base = &bases[usize::try_from(n).unwrap() % bases.len()];
    let name = format!("{}:{}:{n}", family.name(), base.name);
    let image = family.apply(base, n);
    let outcome = exercise(&image);
    if std::env::var_os("HOSTILE_E2FSCK").is_some() && !base.name.starts_with("dirty") {
        ask_e2fsck(&name, &image, outcome.corrupt);
    }
    (name, outcome)
}

/// Prints a disagreement between e2fsck and our checker.
fn ask_e2fsck(name: &str, image: &Image, corrupt: bool) {
    let file = tempfile::NamedTempFile::new().unwrap();
    save(image, file.path());
    let theirs = run_judge("e2fsck", ["-fn".as_ref(), file.path().as_os_str()]);
    if (theirs.code() != 0) != corrupt {
        let (code, words) = (theirs.code(), theirs.out);
        println!("{name}: our checker: corrupt {corrupt}; e2fsck: exit code {code}: {words}");
    }
}

fn run(family: Family) {
    let scratch = tempfile::tempdir().unwrap();
    let bases = Base::all(scratch.path());
    for base in &bases {
        let outcome = exercise(&base.image);
        assert!(
            outcome.violations.is_empty() && !outcome.corrupt,
            "{}: {outcome:?}",
            base.name
        );
        assert!(outcome.mounted[0], "{}", base.name);
    }
    if let Ok(one) = std::env::var("HOSTILE") {
        return run_one(&bases, family, &one);
    }
    let cases = std::env::var("HOSTILE_CASES").map_or(CASES, |n| n.parse().unwrap());
    run_cases(&bases, family, cases).check(family, cases);
}

/// Runs the case with this name, if it is of the family, and shows its outcome.
fn run_one(bases: &[Base], family: Family, name: &str) {
    let words: Vec<&str> = name.split(':').collect();
    if words[0] != family.name() {
        return;
    }
    let n: u64 = words[2].parse().unwrap();
    if let Ok(path) = std::env::var("HOSTILE_IMAGE") {
        let base = &bases[n as usize % bases.len()];
        save(&family.apply(base, n), Path::new(&path));
    }
    let (name, outcome) = case(bases, family, n);
    eprintln!("{name}: {outcome:#?}");
    assert!(outcome.violations.is_empty());
}

/// Runs the first cases of a family.
fn run_cases(bases: &[Base], family: Family, cases: u64) -> Totals {
    let running = Arc::new(Running {
        what: Mutex::new(vec![None; THREADS]),
    });
    running.watch();
    let (next, totals) = (AtomicU64::new(0), Mutex::new(Totals::default()));
    let threads = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let thread = threads.fetch_add(1, Ordering::Relaxed);
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= cases {
                        return running.set(thread, None);
                    }
                    running.set(thread, Some(format!("{}:{n}", family.name())));
                    let (name, outcome) = case(bases, family, n);
                    totals.lock().unwrap().add(&name, outcome);
                }
            });
        }
    });
    totals.into_inner().unwrap()
}

#[test]
fn truncated_images_are_handled() {
    run(Family::Truncated);
}

#[test]
fn flipped_images_are_handled() {
    run(Family::Flipped);
}

#[test]
fn random_images_are_handled() {
    run(Family::Random);
}
