use std::os::fd::AsFd;

use super::codec::{Reply, Request};
use super::*;
use crate::host::{Answer, Question};
use crate::owner::cgroup::Weight;
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
        Request::Question(Question::ShutdownMode {
            pid: 3,
            address: u64::MAX,
        }),
        Request::Question(Question::GroupOf(1)),
        Request::Question(Question::WeightOf("/a b/c".to_owned())),
        Request::Device,
        facts(true, None),
        facts(false, Some(4096)),
        Request::Detach,
        Request::Usable,
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
    ] {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
    assert_eq!(Reply::decode("anything else"), None);
}

#[test]
fn a_message_carries_a_descriptor() {
    let (ours, theirs) = broker_sockets().unwrap();
    let file = tempfile::tempfile().unwrap();
    send(&ours, "done", Some(file.as_fd())).unwrap();
    let (text, fd) = receive(&theirs).unwrap().unwrap();
    assert_eq!(text, "done");
    let (sent, received) = (rustix::fs::fstat(&file), rustix::fs::fstat(fd.unwrap()));
    assert_eq!(sent.unwrap().st_ino, received.unwrap().st_ino);
    send(&ours, "done", None).unwrap();
    assert!(receive(&theirs).unwrap().unwrap().1.is_none());
}

#[test]
fn the_end_of_a_process_is_the_end_of_the_socket() {
    let (ours, theirs) = broker_sockets().unwrap();
    send(&ours, "unread", None).unwrap();
    drop(theirs);
    assert!(receive(&ours).unwrap().is_none());
    assert!(send(&ours, "more", None).is_err());
}

#[test]
fn too_long_messages_are_refused_on_both_sides() {
    let (ours, theirs) = broker_sockets().unwrap();
    let long = "x".repeat(MESSAGE_BYTES_MAX + 1);
    assert!(send(&ours, &long, None).is_err());
    rustix::io::write(&ours, long.as_bytes()).unwrap();
    assert!(receive(&theirs).is_err());
}

/// The broker answers about processes, and does not mount twice or for a text that is no request.
#[test]
fn a_broker_answers_questions_and_refuses_the_rest() {
    let (ours, theirs) = broker_sockets().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::new(theirs, folder.path()).unwrap();
    let task = steadfs_rt::try_spawn("broker", move || {
        let fails = |_| unreachable!("nothing is mounted");
        broker.run(fails, |_| unreachable!("nothing is mounted"))
    });
    let ask = |text: &str| {
        send(&ours, text, None).unwrap();
        receive(&ours).unwrap().unwrap().0
    };
    assert_eq!(ask("admin 0"), "is 0");
    assert_eq!(ask(&format!("dying {}", std::process::id())), "is 0");
    assert!(ask(&format!("group {}", std::process::id())).starts_with(['g', 'u']));
    assert_eq!(
        ask(&format!("shutdown {} 4096", std::process::id())),
        "unknown"
    );
    for refused in ["weight /../etc", "open /etc/shadow", "mount"] {
        assert_eq!(ask(refused), "failed");
    }
    assert_eq!(ask("usable"), "done");
    drop(ours);
    assert!(task.unwrap().join().is_none());
}

#[test]
fn a_broker_syncs_the_volume_of_its_server() {
    let (ours, theirs) = broker_sockets().unwrap();
    let commands = Commands::new(ours);
    let calls = std::sync::atomic::AtomicU32::new(0);
    let task = steadfs_rt::try_spawn("commands", move || {
        serve_commands(&theirs, || {
            match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => Ok(()),
                _ => Err(FsError::NoSpace),
            }
        });
    });
    assert_eq!(commands.sync(), Ok(()));
    assert_eq!(commands.sync(), Err(FsError::NoSpace.to_string()));
    drop(commands);
    task.unwrap().join();
}
