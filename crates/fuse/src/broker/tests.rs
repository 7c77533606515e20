use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::codec::{Reply, Request};
use super::*;
use crate::error::MountError;
use crate::host::{Answer, Question};
use crate::mount::{KernelMount, MountOptions, Mounter};
use steadfs_rt::cpu::ThreadRequest;
use steadfs_rt::groups::Weight;
use steadfs_vfs::FsError;

#[test]
fn requests_are_the_same_after_decoding() {
    let facts = |read_only, block_size| {
        Request::Mount(VolumeFacts {
            read_only,
            block_size,
        })
    };
    for request in [
        Request::Question(Question::IsAdmin(7)),
        Request::Question(Question::IsDying(u32::MAX)),
        Request::Question(Question::ProcessOf(9)),
        Request::Question(Question::HasEnded(9)),
        Request::Question(Question::ShutdownMode {
            pid: 3,
            address: u64::MAX,
        }),
        Request::Question(Question::IsInGroup { pid: 1, gid: 7 }),
        Request::Question(Question::GroupOf(1)),
        Request::Question(Question::CommandOf(1)),
        Request::Question(Question::WeightOf("/a b/c".to_owned())),
        Request::Question(Question::Thread(i32::MAX, ThreadRequest::LeaveIdle)),
        Request::Question(Question::Thread(1, ThreadRequest::RealTimeIo(7))),
        Request::Device,
        Request::CloseResult,
        facts(true, None),
        facts(false, Some(4096)),
        Request::Detach,
        Request::Usable,
        Request::Reopen { claim: true },
        Request::Reopen { claim: false },
        Request::Standby("45 a b\nro,c d=e\n".to_owned()),
        Request::Standby(String::new()),
        Request::Files("file:1:2 device:3".to_owned()),
        Request::Upgrade,
        Request::Progress(u32::MAX),
        Request::TakeOver,
        Request::Record,
    ] {
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
}

#[test]
fn other_requests_are_refused() {
    for text in [
        "",
        "admin",
        "admin -1",
        "admin 1 2",
        "weight",
        "weight a",
        "weight /a/../../etc",
        "weight /..",
        "mount 1",
        "mount 2 x",
        "shutdown 1",
        "realtime 1 8",
        "read /etc/shadow",
    ] {
        assert_eq!(Request::decode(text), None, "{text:?}");
    }
}

#[test]
fn replies_are_the_same_after_decoding() {
    for reply in [
        Reply::Answer(Answer::Unknown),
        Reply::Answer(Answer::Is(true)),
        Reply::Answer(Answer::Is(false)),
        Reply::Answer(Answer::Word(9)),
        Reply::Answer(Answer::Group("/x y".to_owned())),
        Reply::Answer(Answer::Weight(Weight::Is(20))),
        Reply::Answer(Answer::Weight(Weight::Default)),
        Reply::Answer(Answer::Weight(Weight::Gone)),
        Reply::Done,
        Reply::Failed,
        Reply::Refused("/a b: is in use".to_owned()),
    ] {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
    assert_eq!(Reply::decode("anything else"), None);
}

#[test]
fn a_message_carries_descriptors() {
    let (ours, theirs) = broker_sockets().unwrap();
    let file = tempfile::tempfile().unwrap();
    send(&ours, "done", &[file.as_fd(), file.as_fd()]).unwrap();
    let (text, fds) = receive(&theirs).unwrap().unwrap();
    assert_eq!(text, "done");
    let inode = |fd| rustix::fs::fstat(fd).unwrap().st_ino;
    let received: Vec<u64> = fds.iter().map(|fd| inode(fd.as_fd())).collect();
    assert_eq!(received, [inode(file.as_fd()); 2]);
    send(&ours, "done", &[]).unwrap();
    assert!(receive(&theirs).unwrap().unwrap().1.is_empty());
}

#[test]
fn the_end_of_a_process_is_the_end_of_the_socket() {
    let (ours, theirs) = broker_sockets().unwrap();
    send(&ours, "unread", &[]).unwrap();
    drop(theirs);
    assert!(receive(&ours).unwrap().is_none());
    assert!(send(&ours, "more", &[]).is_err());
}

#[test]
fn too_long_messages_are_refused_on_both_sides() {
    let (ours, theirs) = broker_sockets().unwrap();
    let long = "x".repeat(MESSAGE_BYTES_MAX + 1);
    assert!(send(&ours, &long, &[]).is_err());
    rustix::io::write(&ours, long.as_bytes()).unwrap();
    assert!(receive(&theirs).is_err());
}

/// The broker answers about processes, and does not mount twice or for a text that is no request.
#[test]
fn a_broker_answers_questions_and_refuses_the_rest() {
    let (ours, theirs) = broker_sockets().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // One descriptor with a claim, and a reason, longer than a message, without.
    let reopen: Reopen = Box::new(|claim| match claim {
        true => Ok(vec![tempfile::tempfile().unwrap().into()]),
        false => Err("é".repeat(MESSAGE_BYTES_MAX)),
    });
    let commands = Arc::new(Commands::new(broker_sockets().unwrap().0));
    let mounter = Arc::new(KernelMount::new(folder.path()).unwrap());
    let mut broker = Broker::new(theirs, commands, mounter, reopen);
    let task = steadfs_rt::try_spawn("broker", move || {
        let fails = |_| unreachable!("nothing is mounted");
        broker.run(fails, |_| unreachable!("nothing is mounted"))
    });
    let ask = |text: &str| {
        send(&ours, text, &[]).unwrap();
        receive(&ours).unwrap().unwrap().0
    };
    assert_eq!(ask("admin 0"), "is 0");
    assert_eq!(ask(&format!("dying {}", std::process::id())), "is 0");
    assert!(ask(&format!("group {}", std::process::id())).starts_with(['g', 'u']));
    assert_eq!(
        ask(&format!("shutdown {} 4096", std::process::id())),
        "unknown"
    );
    // Not a thread of a child, not a thread.
    assert_eq!(ask(&format!("normal {}", std::process::id())), "is 0");
    assert_eq!(ask("normal -1"), "is 0");
    assert_eq!(ask("realtime 1 0"), "is 0");
    for refused in [
        "weight /../etc",
        "open /etc/shadow",
        "mount",
        "upgrade",
        "take-over",
    ] {
        assert_eq!(ask(refused), "failed");
    }
    // A hostile server does not use up the broker's descriptors.
    for _ in 0..server::DEVICES_MAX {
        assert_eq!(ask("device"), "done");
    }
    assert_eq!(ask("device"), "failed");
    assert_eq!(ask("usable"), "done");
    assert!(ask("reopen 0").starts_with("refused éé"));
    send(&ours, "reopen 1", &[]).unwrap();
    let (text, fds) = receive(&ours).unwrap().unwrap();
    assert_eq!((&*text, fds.len()), ("done", 1));
    drop(ours);
    assert!(matches!(task.unwrap().join(), Ended::WithMount(None)));
}

/// The process ends, which the broker waits for.
#[test]
fn a_server_whose_legacy_cannot_be_written_takes_no_further_command() {
    let (ours, theirs) = broker_sockets().unwrap();
    let task = steadfs_rt::try_spawn("commands", move || {
        let hand_over = |file: &File| {
            rustix::fs::fcntl_add_seals(file, rustix::fs::SealFlags::GROW).ok();
            let written = (&*file).write_all(b"legacy");
            written.map_err(|error| HandOverError::Lost(FsError::Io(error.to_string())))
        };
        serve_commands(&theirs, || Ok(()), hand_over);
    });
    let file = rustix::fs::memfd_create("sealed", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    send(&ours, "hand-over", &[file.as_fd()]).unwrap();
    let (why, _) = receive(&ours).unwrap().unwrap();
    assert!(why.contains("not permitted"), "{why}");
    task.unwrap().join();
    assert!(receive(&ours).unwrap().is_none(), "its socket is closed");
}

/// Mounts nothing, and counts the attempts.
#[derive(Default)]
struct CountingMounter {
    mounts: AtomicU32,
    detaches: AtomicU32,
    /// What it mounts is unmounted at once.
    unmounts: bool,
}

impl Mounter for CountingMounter {
    fn mount(&self, _: &MountOptions) -> Result<OwnedFd, MountError> {
        self.mounts.fetch_add(1, Ordering::Relaxed);
        if self.unmounts {
            // To poll(2) the device of a mount that is gone is as a pipe without a reader.
            return Ok(std::io::pipe().unwrap().1.into());
        }
        Ok(tempfile::tempfile().unwrap().into())
    }

    fn spare(&self) -> Result<Vec<File>, MountError> {
        Ok(Vec::new())
    }

    fn detach(&self) -> bool {
        self.detaches.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn is_usable(&self, _: &MountOptions) {}
}

/// A broker of this mounter, without a device to reopen, and its server's end of the socket.
fn broker_with(mounter: &Arc<CountingMounter>) -> (Broker, OwnedFd) {
    let (ours, theirs) = broker_sockets().unwrap();
    let commands = Arc::new(Commands::new(broker_sockets().unwrap().0));
    let reopen: Reopen = Box::new(|_| Ok(Vec::new()));
    let mounter = Arc::clone(mounter);
    (Broker::new(theirs, commands, mounter, reopen), ours)
}

fn run_broker(mut broker: Broker) -> steadfs_rt::JoinHandle<(Broker, Ended)> {
    let task = steadfs_rt::try_spawn("broker", move || {
        let ended = broker.run(|_| MountOptions::default(), |_| ());
        (broker, ended)
    });
    task.unwrap()
}

fn ask_for(socket: &OwnedFd, text: &str) -> (String, Vec<OwnedFd>) {
    send(socket, text, &[]).unwrap();
    receive(socket).unwrap().unwrap()
}

/// Files of which the first ones reported are the right ones, until they are replaced.
#[derive(Default)]
struct ReplacedFiles {
    first: Option<String>,
    replaced: Arc<AtomicBool>,
}

impl VolumeFiles for ReplacedFiles {
    fn confirm(&mut self, opened: &str) -> Result<(), String> {
        let first = self.first.get_or_insert_with(|| opened.to_owned());
        match first == opened {
            true => Ok(()),
            false => Err("is another file".to_owned()),
        }
    }

    fn check(&self) -> Result<(), String> {
        match self.replaced.load(Ordering::Relaxed) {
            true => Err("was replaced".to_owned()),
            false => Ok(()),
        }
    }
}

/// A server hands over, and has a successor, only while that one would open the same files.
#[test]
fn no_server_continues_with_other_files() {
    for is_replaced in [false, true] {
        let (broker, ours) = broker_with(&Arc::default());
        let replaced = Arc::<AtomicBool>::default();
        let task = run_broker(broker.with_files(ReplacedFiles {
            first: None,
            replaced: Arc::clone(&replaced),
        }));
        let ask = |text: &str| ask_for(&ours, text).0;
        assert_eq!(ask("files a b"), "done");
        assert_eq!(ask("files a c"), "refused is another file");
        assert_eq!(ask("mount 1 0"), "done");
        assert_eq!(ask("usable"), "done");
        assert_eq!(ask("standby 45 ended"), "done");
        replaced.store(is_replaced, Ordering::Relaxed);
        if is_replaced {
            assert_eq!(ask("upgrade"), "refused was replaced");
        }
        drop(ours);
        let (mut broker, ended) = task.join();
        if is_replaced {
            assert!(matches!(ended, Ended::WithMount(None)));
            continue;
        }
        assert!(matches!(ended, Ended::Unexpectedly));
        let (ours, theirs) = broker_sockets().unwrap();
        broker.serve_successor(theirs, broker_sockets().unwrap().0);
        let task = run_broker(broker);
        assert_eq!(ask_for(&ours, "files a c").0, "refused is another file");
        assert_eq!(ask_for(&ours, "files a b").0, "done");
        drop(ours);
        assert!(matches!(task.join().1, Ended::NotTakenOver));
    }
}

/// A server that ends because its mount was unmounted has a successor only for what it has recorded and not written.
#[test]
fn of_a_mount_that_is_gone_only_a_record_is_continued() {
    for (is_recorded, is_written) in [(false, false), (true, false), (true, true)] {
        let mounter = Arc::new(CountingMounter {
            unmounts: true,
            ..CountingMounter::default()
        });
        let (broker, ours) = broker_with(&mounter);
        let task = run_broker(broker);
        if is_recorded {
            assert_eq!(ask_for(&ours, "record").0, "done");
        }
        for done in ["mount 1 0", "usable", "standby 45 ended"] {
            assert_eq!(ask_for(&ours, done).0, "done");
        }
        if is_written {
            let nothing = Request::Standby(String::new()).encode();
            assert_eq!(ask_for(&ours, &nothing).0, "done");
        }
        drop(ours);
        let (broker, ended) = task.join();
        assert_eq!(broker.is_worth_continuing(), is_recorded);
        // No pause is waited for if nothing is left to continue.
        let pause = Duration::from_secs(if is_recorded { 0 } else { 600 });
        assert_eq!(broker.is_worth_continuing_after(pause), is_recorded);
        match is_recorded && !is_written {
            true => assert!(matches!(ended, Ended::Unexpectedly)),
            false => assert!(matches!(ended, Ended::WithMount(None))),
        }
    }
}

#[test]
fn the_mount_of_a_server_that_ended_before_it_was_usable_is_removed() {
    for is_usable in [false, true] {
        let mounter = Arc::default();
        let (broker, ours) = broker_with(&mounter);
        let task = run_broker(broker);
        assert_eq!(ask_for(&ours, "mount 0 0").0, "done");
        if is_usable {
            assert_eq!(ask_for(&ours, "usable").0, "done");
        }
        drop(ours);
        assert!(matches!(task.join().1, Ended::WithMount(None)));
        let detaches = mounter.detaches.load(Ordering::Relaxed);
        assert_eq!(detaches, u32::from(!is_usable));
    }
}

/// A server mounts twice at most, and neither it nor a successor mounts or unmounts once the mount was usable.
#[test]
fn a_mount_that_was_usable_is_not_made_again() {
    for attempts in [1, 2] {
        let mounter = Arc::default();
        let (broker, ours) = broker_with(&mounter);
        let task = run_broker(broker);
        let ask = |text: &str| ask_for(&ours, text).0;
        assert_eq!(ask("mount 0 0"), "done");
        for _ in 1..attempts {
            assert_eq!(ask("mount 0 0"), "failed", "there is one");
            assert_eq!(ask("detach"), "done");
            assert_eq!(ask("mount 0 0"), "done");
        }
        if attempts == 2 {
            assert_eq!(ask("detach"), "done");
            assert_eq!(ask("mount 0 0"), "failed", "a third time");
        }
        assert_eq!(ask("usable"), "done");
        assert_eq!(ask("detach"), "failed");
        assert_eq!(ask("mount 0 0"), "failed");
        drop(ours);
        let (mut broker, _) = task.join();
        let (ours, theirs) = broker_sockets().unwrap();
        broker.serve_successor(theirs, broker_sockets().unwrap().0);
        let task = run_broker(broker);
        for refused in ["detach", "mount 0 0"] {
            assert_eq!(ask_for(&ours, refused).0, "failed", "of a successor");
        }
        drop(ours);
        task.join();
        assert_eq!(mounter.mounts.load(Ordering::Relaxed), attempts);
        assert_eq!(mounter.detaches.load(Ordering::Relaxed), 2 * (attempts - 1));
    }
}

/// The successor of a server that was killed gets the connection, the legacy and the record.
#[test]
fn a_successor_gets_the_record_of_its_predecessor() {
    let mounter = Arc::default();
    let (broker, ours) = broker_with(&mounter);
    let task = run_broker(broker);
    assert_eq!(ask_for(&ours, "mount 0 0").1.len(), 1);
    let record = ask_for(&ours, "record").1;
    let standby = Request::Standby("45 recorded ended\nrw\n".to_owned()).encode();
    assert_eq!(ask_for(&ours, &standby).0, "done");
    assert_eq!(ask_for(&ours, "usable").0, "done");
    drop(ours);
    let (mut broker, ended) = task.join();
    assert!(matches!(ended, Ended::Unexpectedly));
    let (ours, theirs) = broker_sockets().unwrap();
    broker.serve_successor(theirs, broker_sockets().unwrap().0);
    let task = run_broker(broker);
    let (text, fds) = ask_for(&ours, "take-over");
    let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    assert_eq!((&*text, fds.len()), ("is 0", 3));
    assert_eq!(inode(&fds[2]), inode(&record[0]));
    drop(ours);
    assert!(matches!(task.join().1, Ended::NotTakenOver));
}

/// A hand-over that is refused leaves the server; one that is done is followed by a successor, which finds nothing to take
/// over, because nothing is mounted.
#[test]
fn a_broker_commands_one_hand_over_at_a_time() {
    let (ours, theirs) = broker_sockets().unwrap();
    let (sends, takes) = broker_sockets().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let reopen: Reopen = Box::new(|_| Ok(Vec::new()));
    let commands = Arc::new(Commands::new(sends));
    let mounter = Arc::new(KernelMount::new(folder.path()).unwrap());
    let mut broker = Broker::new(theirs, commands, mounter, reopen);
    let run = |mut broker: Broker| {
        let task = steadfs_rt::try_spawn("broker", move || {
            let fails = |_| unreachable!("nothing is mounted");
            let ended = broker.run(fails, |_| ());
            (broker, ended)
        });
        task.unwrap()
    };
    let ask = |socket: &OwnedFd, text: &str| {
        send(socket, text, &[]).unwrap();
        receive(socket).unwrap().unwrap().0
    };
    let task = run(broker);
    assert_eq!(ask(&ours, "usable"), "done");
    for (reply, wanted) in [("busy", "refused busy"), ("done", "is 0")] {
        assert_eq!(ask(&ours, "upgrade"), "word 0");
        assert_eq!(ask(&ours, "upgrade"), "word 0", "it has begun");
        assert_eq!(ask(&ours, "progress 0"), "is 0");
        let (text, files) = receive(&takes).unwrap().unwrap();
        assert_eq!((&*text, files.len()), ("hand-over", 1));
        send(&takes, reply, &[]).unwrap();
        let answered = || ask(&ours, "progress 0") == wanted;
        while !answered() {
            steadfs_rt::sleep(std::time::Duration::from_millis(1));
        }
    }
    drop(ours);
    let ended;
    (broker, ended) = task.join();
    assert!(matches!(ended, Ended::HandedOver));
    let (ours, theirs) = broker_sockets().unwrap();
    broker.serve_successor(theirs, broker_sockets().unwrap().0);
    let task = run(broker);
    assert_eq!(ask(&ours, "take-over"), "failed");
    drop(ours);
    assert!(matches!(task.join().1, Ended::NotTakenOver));
}

#[test]
fn a_broker_syncs_the_volume_of_its_server() {
    let (ours, theirs) = broker_sockets().unwrap();
    let commands = Commands::new(ours);
    let calls = std::sync::atomic::AtomicU32::new(0);
    let task = steadfs_rt::try_spawn("commands", move || {
        let count = || calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let every_other = || match count() % 2 {
            0 => Ok(()),
            _ => Err(FsError::NoSpace),
        };
        let hand_over = |mut file: &File| {
            file.write_all(b"legacy").unwrap();
            every_other().map_err(HandOverError::Refused)
        };
        serve_commands(&theirs, every_other, hand_over);
    });
    assert_eq!(commands.sync(), Ok(()));
    let full = FsError::NoSpace.to_string();
    assert_eq!(commands.hand_over().err(), Some(full.clone()));
    assert_eq!(commands.sync(), Ok(()));
    assert_eq!(commands.sync(), Err(full));
    let mut text = String::new();
    let mut file = File::from(commands.hand_over().unwrap());
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "legacy");
    // It serves no more.
    task.unwrap().join();
}
