//! More long requests than there are service threads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfs_rt::{JoinHandle, now, spawn};

use common::{TestMount, until};

/// More than there are slots and, on few CPUs, ring entries.
const CALLS: u32 = 300;
/// Limit for one look-up, on a machine of any load. Without slots it is never served.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Runs a call that must not wait for the others.
fn within_the_limit<T: Send + Clone + 'static>(
    what: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> T {
    let call = spawn("call", call);
    let begin = now();
    while !call.is_finished() {
        assert!(
            begin.elapsed() < WAIT_MAX,
            "{what} waits for the long requests"
        );
        steadfs_rt::sleep(Duration::from_millis(2));
    }
    call.join()
}

/// Starts calls that wait until the volume is unblocked, each on a file of its own.
fn waiting_calls(
    mount: &TestMount,
    call: impl Fn(File) + Clone + Send + 'static,
) -> Vec<JoinHandle<()>> {
    let names = (0..CALLS).map(|n| mount.path(&format!("f{n}")));
    let files: Vec<_> = names.map(|path| File::create(path).unwrap()).collect();
    files
        .into_iter()
        .map(|file| {
            let call = call.clone();
            spawn("call", move || call(file))
        })
        .collect()
}

fn look_up_missing(mount: &TestMount, name: &str) {
    let path = mount.path(name);
    let found = within_the_limit("a look-up", move || {
        fs::metadata(path).map_err(|e| e.kind()).err()
    });
    assert_eq!(found, Some(ErrorKind::NotFound));
}

#[test]
fn a_look_up_is_served_while_300_fsyncs_wait() {
    for transport in common::transports() {
        let mount = TestMount::new(transport);
        mount.mem().blocked_fsyncs.store(1, Ordering::SeqCst);
        let waiting_calls = waiting_calls(&mount, |file| file.sync_all().unwrap());
        until("many fsyncs wait", || {
            mount.mem().fsyncs.load(Ordering::SeqCst) >= 32
        });
        steadfs_rt::sleep(Duration::from_millis(100));
        for n in 0..20 {
            look_up_missing(&mount, &format!("look_up_missing {n}"));
        }
        let (dir, value) = (mount.path("dir"), mount.path(".steadfs/value"));
        within_the_limit("a control file", move || fs::write(value, "7").unwrap());
        within_the_limit("a new directory", move || fs::create_dir(dir).unwrap());
        assert!(mount.mem().fsyncs.load(Ordering::SeqCst) < CALLS);
        mount.mem().blocked_fsyncs.store(0, Ordering::SeqCst);
        for one in waiting_calls {
            one.join();
        }
        assert_eq!(mount.mem().fsyncs.load(Ordering::SeqCst), CALLS);
        mount.end();
    }
}

#[test]
fn a_look_up_is_served_while_300_writes_wait() {
    for transport in common::transports() {
        let mount = TestMount::new(transport);
        mount
            .mem()
            .blocked_write_byte
            .store(b'w'.into(), Ordering::SeqCst);
        let short = Arc::new(AtomicU32::new(0));
        let counted = short.clone();
        let data = vec![b'w'; 1 << 20];
        let waiting_calls = waiting_calls(&mount, move |file| {
            let mut done = 0;
            while done < data.len() {
                let n = rustix::io::write(&file, &data[done..]).unwrap();
                counted.fetch_add(u32::from(n < data.len() - done), Ordering::SeqCst);
                done += n;
            }
        });
        until("many writes wait", || {
            mount.mem().writes.load(Ordering::SeqCst) >= 32
        });
        steadfs_rt::sleep(Duration::from_millis(300));
        for n in 0..20 {
            look_up_missing(&mount, &format!("look_up_missing {n}"));
        }
        mount.mem().blocked_write_byte.store(0, Ordering::SeqCst);
        for one in waiting_calls {
            one.join();
        }
        let expected = vec![b'w'; 1 << 20];
        for n in [0, 1, CALLS / 2, CALLS - 1] {
            assert!(
                mount.mem().content(&mount.path(&format!("f{n}"))) == expected,
                "file {n}"
            );
        }
        // Writes that were cut, because the queued messages exceeded their limit.
        assert!(short.load(Ordering::SeqCst) > 0, "{transport:?}");
        mount.end();
    }
}

/// Whether a killed caller ends before [`WAIT_MAX`].
fn ends(child: &mut Child) -> bool {
    let begin = now();
    while child.try_wait().unwrap().is_none() && begin.elapsed() < WAIT_MAX {
        steadfs_rt::sleep(Duration::from_millis(2));
    }
    child.try_wait().unwrap().is_some()
}

#[test]
fn a_killed_caller_does_not_wait_for_a_slot() {
    for transport in common::transports() {
        let mount = TestMount::new(transport);
        fs::write(mount.path("f"), "x").unwrap();
        mount.mem().blocked_fsyncs.store(1, Ordering::SeqCst);
        let waiting_calls = waiting_calls(&mount, |file| file.sync_all().unwrap());
        until("many fsyncs wait", || {
            mount.mem().fsyncs.load(Ordering::SeqCst) >= 32
        });
        steadfs_rt::sleep(Duration::from_millis(100));
        let before = mount.count("FSYNC");
        let mut child = Command::new("sync").arg(mount.path("f")).spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        until("it waits for its fsync", || {
            fs::read_to_string(&stat).unwrap().contains(") D ")
                || fs::read_to_string(&stat).unwrap().contains(") S ")
        });
        steadfs_rt::sleep(Duration::from_millis(50));
        child.kill().unwrap();
        let ended = (ends(&mut child), mount.count("FSYNC"));
        mount.mem().blocked_fsyncs.store(0, Ordering::SeqCst);
        for one in waiting_calls {
            one.join();
        }
        assert_eq!(ended, (true, before), "the killed fsync was not served");
        mount.end();
    }
}

/// The kernel sends one INTERRUPT for a request, at the first signal.
#[test]
fn a_caller_that_is_killed_after_a_signal_with_a_handler_does_not_wait_for_a_slot() {
    for transport in common::transports() {
        let mount = TestMount::new(transport);
        fs::write(mount.path("f"), "x").unwrap();
        mount.mem().blocked_fsyncs.store(1, Ordering::SeqCst);
        let waiting_calls = waiting_calls(&mount, |file| file.sync_all().unwrap());
        until("many fsyncs wait", || {
            mount.mem().fsyncs.load(Ordering::SeqCst) >= 32
        });
        steadfs_rt::sleep(Duration::from_millis(100));
        let script = "trap : USR1; echo ready; echo more >> \"$0\"";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(mount.path("f"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut ready)
            .unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        let is_in = |state: &str| fs::read_to_string(&stat).unwrap().contains(state);
        until("it waits for its write", || is_in(") S "));
        steadfs_rt::sleep(Duration::from_millis(50));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
        until("only SIGKILL interrupts it", || is_in(") D "));
        steadfs_rt::sleep(Duration::from_millis(50));
        child.kill().unwrap();
        let ended = ends(&mut child);
        mount.mem().blocked_fsyncs.store(0, Ordering::SeqCst);
        for one in waiting_calls {
            one.join();
        }
        assert!(ended, "a killed caller waits");
        assert_eq!(mount.mem().content(&mount.path("f")), b"x");
        mount.end();
    }
}
