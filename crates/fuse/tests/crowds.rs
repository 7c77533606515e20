//! More requests that take long than there are service threads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfs_rt::{JoinHandle, now, spawn};

use common::{Bed, until};

/// More than there are slots and, on few CPUs, ring entries.
const CROWD: u32 = 300;
/// What a look-up may take on however busy a machine. Without slots it takes for ever.
const LONGEST: Duration = Duration::from_secs(20);

/// Runs a call that must not wait for others.
fn at_once<T: Send + Clone + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let call = spawn("call", call);
    let begin = now();
    while !call.is_finished() {
        assert!(begin.elapsed() < LONGEST, "{what} waits for the crowd");
        steadfs_rt::sleep(Duration::from_millis(2));
    }
    call.join()
}

/// Calls that wait until a gate of the volume opens, each for a file of its own.
fn crowd(bed: &Bed, call: impl Fn(File) + Clone + Send + 'static) -> Vec<JoinHandle<()>> {
    let names = (0..CROWD).map(|n| bed.path(&format!("f{n}")));
    let files: Vec<_> = names.map(|path| File::create(path).unwrap()).collect();
    files
        .into_iter()
        .map(|file| {
            let call = call.clone();
            spawn("crowd", move || call(file))
        })
        .collect()
}

fn missing(bed: &Bed, name: &str) {
    let path = bed.path(name);
    let found = at_once("a look-up", move || {
        fs::metadata(path).map_err(|e| e.kind()).err()
    });
    assert_eq!(found, Some(ErrorKind::NotFound));
}

#[test]
fn a_look_up_is_served_however_many_fsyncs_wait() {
    for transport in common::transports() {
        let bed = Bed::new(transport);
        bed.mem().fsync_gate.store(1, Ordering::SeqCst);
        let crowd = crowd(&bed, |file| file.sync_all().unwrap());
        until("many fsyncs wait", || {
            bed.mem().fsyncs.load(Ordering::SeqCst) >= 32
        });
        steadfs_rt::sleep(Duration::from_millis(100));
        for n in 0..20 {
            missing(&bed, &format!("missing {n}"));
        }
        let (dir, value) = (bed.path("dir"), bed.path(".steadfs/value"));
        at_once("a control file", move || fs::write(value, "7").unwrap());
        at_once("a new directory", move || fs::create_dir(dir).unwrap());
        assert!(bed.mem().fsyncs.load(Ordering::SeqCst) < CROWD);
        bed.mem().fsync_gate.store(0, Ordering::SeqCst);
        for one in crowd {
            one.join();
        }
        assert_eq!(bed.mem().fsyncs.load(Ordering::SeqCst), CROWD);
        bed.end();
    }
}

#[test]
fn a_look_up_is_served_however_many_writes_wait() {
    for transport in common::transports() {
        let bed = Bed::new(transport);
        bed.mem().write_gate.store(b'w'.into(), Ordering::SeqCst);
        let short = Arc::new(AtomicU32::new(0));
        let counted = short.clone();
        let data = vec![b'w'; 1 << 20];
        let crowd = crowd(&bed, move |file| {
            let mut done = 0;
            while done < data.len() {
                let n = rustix::io::write(&file, &data[done..]).unwrap();
                counted.fetch_add(u32::from(n < data.len() - done), Ordering::SeqCst);
                done += n;
            }
        });
        until("many writes wait", || {
            bed.mem().writes.load(Ordering::SeqCst) >= 32
        });
        steadfs_rt::sleep(Duration::from_millis(300));
        for n in 0..20 {
            missing(&bed, &format!("missing {n}"));
        }
        bed.mem().write_gate.store(0, Ordering::SeqCst);
        for one in crowd {
            one.join();
        }
        let expected = vec![b'w'; 1 << 20];
        for n in [0, 1, CROWD / 2, CROWD - 1] {
            assert!(
                bed.mem().content(&bed.path(&format!("f{n}"))) == expected,
                "file {n}"
            );
        }
        // Those that were put aside beyond what memory there is for them.
        assert!(short.load(Ordering::SeqCst) > 0, "{transport:?}");
        bed.end();
    }
}

fn ends(child: &mut Child) {
    let begin = now();
    while child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < LONGEST, "a killed caller waits");
        steadfs_rt::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_killed_caller_does_not_wait_for_a_slot() {
    for transport in common::transports() {
        let bed = Bed::new(transport);
        fs::write(bed.path("f"), "x").unwrap();
        bed.mem().fsync_gate.store(1, Ordering::SeqCst);
        let crowd = crowd(&bed, |file| file.sync_all().unwrap());
        until("many fsyncs wait", || {
            bed.mem().fsyncs.load(Ordering::SeqCst) >= 32
        });
        steadfs_rt::sleep(Duration::from_millis(100));
        let before = bed.count("FSYNC");
        let mut child = Command::new("sync").arg(bed.path("f")).spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        until("it waits for its fsync", || {
            fs::read_to_string(&stat).unwrap().contains(") D ")
                || fs::read_to_string(&stat).unwrap().contains(") S ")
        });
        steadfs_rt::sleep(Duration::from_millis(50));
        child.kill().unwrap();
        ends(&mut child);
        assert_eq!(bed.count("FSYNC"), before, "it has not begun");
        bed.mem().fsync_gate.store(0, Ordering::SeqCst);
        for one in crowd {
            one.join();
        }
        bed.end();
    }
}
