//! A mounter that behaves, and mounters that do not.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::broker::{Broker, Commands, Ended, Reopen, VolumeFacts, broker_sockets};
use crate::host::{Answer, Host, Question};
use crate::mount::MountFlags;

/// A greeting of root's mounter.
const GREETING: &[u8] = b"SAFT\0\x01\0\x01\0\0\0\x03";

/// A file with the arguments `steadfs /a /mnt`.
fn arguments() -> OwnedFd {
    let mut bytes = b"ARGS\0\0\0\x03".to_vec();
    for (at, len) in [(32_u32, 8_u32), (40, 3), (43, 5)] {
        bytes.extend_from_slice(&at.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
    }
    bytes.extend_from_slice(b"steadfs\0/a\0/mnt\0");
    file(&bytes)
}

fn file(bytes: &[u8]) -> OwnedFd {
    let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(bytes).unwrap();
    file.into()
}

/// What a mounter sends, in this order, whatever it receives.
fn greeted_with(messages: &[(&[u8], Vec<OwnedFd>)]) -> Result<Service, ServiceError> {
    let (ours, theirs) = broker_sockets().unwrap();
    for (message, fds) in messages {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send(&ours, message, &fds).unwrap();
    }
    // The kernel keeps what was sent; nothing more follows.
    rustix::net::shutdown(&ours, Shutdown::Write).unwrap();
    Service::accept(theirs)
}

fn greeted() -> (OwnedFd, Service) {
    let (ours, theirs) = broker_sockets().unwrap();
    send(&ours, GREETING, &[]).unwrap();
    send(&ours, b"FILE\0\0\0\0argv\0", &[arguments().as_fd()]).unwrap();
    send(&ours, b"FILE\0\0\0\0fusedev\0", &[file(b"fuse").as_fd()]).unwrap();
    let service = Service::accept(theirs).unwrap();
    assert_eq!(received(&ours), b"LAST\0\x01\0\0");
    (ours, service)
}

fn received(socket: &OwnedFd) -> Vec<u8> {
    receive(socket, MESSAGE_BYTES_MAX).unwrap().unwrap().0
}

#[test]
fn a_mounter_mounts_once() {
    let (mounter, service) = greeted();
    assert_eq!(service.arguments(), ["steadfs", "/a", "/mnt"]);
    assert!(service.is_roots() && service.allows_others());
    service.mount_on("/mnt".as_ref());
    let options = MountOptions {
        source: "/a".to_owned(),
        ..MountOptions::default()
    };
    // The replies are there before the requests.
    for _ in 0..5 {
        send(&mounter, b"REPL\0\0\0\0", &[]).unwrap();
    }
    let device = service.mount(&options).unwrap();
    assert_eq!(content(&device).unwrap(), b"fuse");
    for wanted in [
        &b"TYPE\0\0\0\0"[..],
        b"NAME/a\0",
        b"MNTP\x40\0\0\0/mnt\0",
        b"OPTSmax_read=1048576,default_permissions,allow_other\0",
        b"DOIT\0\0\0\0",
    ] {
        assert_eq!(received(&mounter), wanted);
    }
    let again = service.mount(&options).unwrap_err().to_string();
    assert!(again.contains("fuse_transport=dev"), "{again}");
    service.is_usable(&options);
    service.end(32);
    assert_eq!(received(&mounter), b"BYEE\0\0\0\0");
    assert!(receive(&mounter, MESSAGE_BYTES_MAX).unwrap().is_none());
    let late = service.open("/a".as_ref(), OFlags::RDONLY).unwrap_err();
    assert!(late.to_string().contains("ended already"), "{late}");
}

#[test]
fn refusals_name_what_was_refused() {
    let (mounter, service) = greeted();
    service.mount_on("/mnt".as_ref());
    for (replies, wanted) in [
        (&["REPL\0\0\0\x01"][..], "the type of mount"),
        (&["REPL\0\0\0\0", "REPL\0\0\0\x16"], "the source"),
    ] {
        for reply in replies {
            send(&mounter, reply.as_bytes(), &[]).unwrap();
        }
        service.files.lock().device = Some(file(b"fuse"));
        let error = service.mount(&MountOptions::default()).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    send(&mounter, b"FILE\0\0\0\x0d/a\0", &[]).unwrap();
    let error = service.open("/a".as_ref(), OFlags::RDWR).unwrap_err();
    assert!(
        matches!(&error, ServiceError::Refused { cause, .. }
            if cause.kind() == io::ErrorKind::PermissionDenied),
        "{error}"
    );
    let path = OsString::from("x".repeat(MESSAGE_BYTES_MAX));
    let error = service.open(&path, OFlags::RDWR).unwrap_err();
    assert!(matches!(error, ServiceError::Protocol(_)), "{error}");
}

#[test]
fn requested_files_are_the_right_ones() {
    let (mounter, service) = greeted();
    let file = file(b"");
    for (reply, fds) in [
        (&b"FILE\0\0\0\0/b\0"[..], vec![file.as_fd()]),
        (b"FILE\0\0\0\0/a\0", vec![]),
        (b"FILE\0\0\0\0/a\0", vec![file.as_fd(); 2]),
        (b"REPL\0\0\0\0", vec![file.as_fd()]),
    ] {
        send(&mounter, reply, &fds).unwrap();
        let opened = service.open("/a".as_ref(), OFlags::RDONLY);
        assert!(
            matches!(opened, Err(ServiceError::Protocol(_))),
            "{opened:?}"
        );
    }
    send(&mounter, b"FILE\0\0\0\0/a\0", &[file.as_fd()]).unwrap();
    service
        .open_block_device("/a".as_ref(), OFlags::RDONLY)
        .unwrap();
    // The replies to the requests for the FUSE device.
    send(&mounter, b"FILE\0\0\0\0/dev/fuse\0", &[file.as_fd()]).unwrap();
    send(&mounter, b"FILE\0\0\0\x02/dev/fuse\0", &[]).unwrap();
    service.open_devices();
    assert!(service.open_device().is_ok() && service.open_device().is_err());
}

#[test]
fn other_greetings_are_refused() {
    let files = || {
        [
            (&b"FILE\0\0\0\0argv\0"[..], vec![arguments()]),
            (&b"FILE\0\0\0\0fusedev\0"[..], vec![file(b"")]),
        ]
    };
    let [argv, device] = files();
    assert!(greeted_with(&[(GREETING, vec![]), argv, device]).is_ok());
    let [argv, device] = files();
    assert!(greeted_with(&[(GREETING, vec![]), device, argv]).is_err());
    let [argv, device] = files();
    assert!(greeted_with(&[argv, device]).is_err());
    let [argv, _] = files();
    assert!(greeted_with(&[(GREETING, vec![]), argv]).is_err());
    assert!(greeted_with(&[(GREETING, vec![])]).is_err());
    assert!(greeted_with(&[]).is_err());
    // Longer than any message.
    let long = [GREETING, &vec![0; MESSAGE_BYTES_MAX]].concat();
    assert!(greeted_with(&[(&long, vec![])]).is_err());
    // The file with the arguments is none, or is too long.
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let long = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
    long.set_len(ARGUMENTS_BYTES_MAX as u64 + 1).unwrap();
    for arguments in [pipe, long.into(), file(b"ARGS\0\0\0\x01")] {
        let [_, device] = files();
        let argv = (&b"FILE\0\0\0\0argv\0"[..], vec![arguments]);
        assert!(greeted_with(&[(GREETING, vec![]), argv, device]).is_err());
    }
}

/// The mount of an ordinary user is not root's, and no caller administers it.
#[test]
fn users_and_callers() {
    let [argv, device] = [
        (&b"FILE\0\0\0\0argv\0"[..], vec![arguments()]),
        (&b"FILE\0\0\0\0fusedev\0"[..], vec![file(b"")]),
    ];
    let greeting = b"SAFT\0\x01\0\x01\0\0\0\0";
    let service = greeted_with(&[(greeting, vec![]), argv, device]).unwrap();
    assert!(!service.is_roots() && !service.allows_others());
    let (_broker, socket) = broker_sockets().unwrap();
    let client = ServiceClient::connect(socket, service.is_roots());
    assert_ne!(client.owner().0, 0);
    let own = std::process::id();
    assert_eq!(client.ask(Question::IsAdmin(own)), Answer::Unknown);
    assert!(client.upgrade().is_err() && client.has_successor(0).is_err());
    assert!(client.no_administration().is_some());
}

/// The mounter gets the requests of the broker, and none of the server's, whatever that sends.
#[test]
fn a_server_reaches_the_mounter_through_the_broker_only() {
    let (mounter, service) = greeted();
    service.mount_on("/mnt".as_ref());
    let (server, requests) = broker_sockets().unwrap();
    let commands = Arc::new(Commands::new(broker_sockets().unwrap().0));
    let given = Mutex::new(Rank::Leaf, vec![file(b"volume")]);
    let reopen: Reopen = Box::new(move |_| {
        given
            .lock()
            .pop()
            .map(|file| vec![file])
            .ok_or_else(String::new)
    });
    let mut broker = Broker::new(requests, commands, Arc::new(service), reopen);
    let task = steadfs_rt::try_spawn("broker", move || {
        let how = |facts: VolumeFacts| MountOptions {
            source: "/a".to_owned(),
            flags: MountFlags {
                read_only: facts.read_only,
                nosuid: true,
                nodev: true,
                ..MountFlags::default()
            },
            ..MountOptions::default()
        };
        broker.run(how, |handle| assert!(handle.is_none()))
    });
    let ask = |message: &[u8]| {
        send(&server, message, &[]).unwrap();
        let (text, files) = receive(&server, MESSAGE_BYTES_MAX).unwrap().unwrap();
        (String::from_utf8(text).unwrap(), files)
    };
    let (text, files) = ask(b"reopen 0");
    assert_eq!((&*text, files.len()), ("done", 1));
    let own = std::process::id();
    for (message, reply) in [
        (&b"reopen 0"[..], "refused "),
        (b"OPEN\0\0\x02\x02\0\0\0\0\0\0\0\0\0\0\0\0/a\0", "failed"),
        (b"BYEE\0\0\0\0", "failed"),
        (format!("dying {own}").as_bytes(), "unknown"),
        (b"weight /", "unknown"),
        (b"device", "failed"),
    ] {
        assert_eq!(ask(message).0, reply, "{message:?}");
    }
    for _ in 0..5 {
        send(&mounter, b"REPL\0\0\0\0", &[]).unwrap();
    }
    let (text, files) = ask(b"mount 1 0");
    assert_eq!((&*text, files.len()), ("done", 1));
    assert_eq!(ask(b"usable").0, "done");
    for wanted in [
        &b"TYPE\0\0\0\0"[..],
        b"NAME/a\0",
        b"MNTP\x40\0\0\0/mnt\0",
        b"OPTSmax_read=1048576,default_permissions,allow_other\0",
        // MS_RDONLY, MS_NOSUID, MS_NODEV.
        b"DOIT\0\0\0\x07",
        b"BYEE\0\0\0\0",
    ] {
        assert_eq!(received(&mounter), wanted);
    }
    assert!(receive(&mounter, MESSAGE_BYTES_MAX).unwrap().is_none());
    drop(server);
    assert!(matches!(task.unwrap().join(), Ended::WithMount(None)));
}
