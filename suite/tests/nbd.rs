//! Volumes on NBD servers: those of nbdkit and qemu-nbd, which are killed, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use steadfs_suite::command::{succeed, until};
use steadfs_suite::{Image, Scratch, steadfs};

const MIB: u64 = 1 << 20;

/// A server on a socket. It is killed at the end.
struct NbdServer {
    child: Child,
    socket: PathBuf,
}

impl NbdServer {
    /// An nbdkit that takes encrypted connections only, of clients with a certificate.
    fn start_encrypted(scratch: &Scratch, certificates: &Path, image: &Path) -> Self {
        let dir = format!("--tls-certificates={}", certificates.display());
        let args = [
            "--tls=require",
            &dir,
            "--tls-verify-peer",
            "file",
            text(image),
        ];
        Self::start(scratch, "nbdkit", &args)
    }

    /// `args` follow the words that make the program listen on the socket.
    fn start(scratch: &Scratch, program: &str, args: &[&str]) -> Self {
        let socket = scratch.join("nbd.sock");
        let _ = fs::remove_file(&socket);
        let listen: &[&str] = match program {
            "nbdkit" => &["--foreground", "--unix"],
            _ => &["--persistent", "--socket"],
        };
        let child = Command::new(program)
            .args(listen)
            .arg(&socket)
            .args(args)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error} (scripts/install-judges)"));
        until("the server listens", || socket.exists());
        Self { child, socket }
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn empty(scratch: &Scratch) -> Image {
    Image::empty(scratch, "disk.img", 64 * MIB)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn commands_and_a_mount_use_an_export() {
    let scratch = Scratch::new();
    let image = empty(&scratch);
    let server = NbdServer::start(&scratch, "nbdkit", &["file", text(image.path())]);
    let uri = server.uri("");
    steadfs(["format", "-q", &uri]).expect(0);
    let source = scratch.join("source");
    fs::write(&source, vec![7; 3_000_000]).unwrap();
    steadfs(["cp", text(&source), &format!("{uri}:/file")]).expect(0);
    let listed = steadfs(["ls", &uri]).expect(0);
    assert_eq!(listed.out, "file\nlost+found\n");
    steadfs(["check", &uri]).expect(0);
    let dir = scratch.folder("mnt");
    let options = "sandbox=on,fuse_transport=dev";
    steadfs(["mount", "-o", options, &uri, text(&dir)]).expect(0);
    assert!(fs::read(dir.join("file")).unwrap() == vec![7; 3_000_000]);
    fs::write(dir.join("new"), "new").unwrap();
    steadfs(["upgrade", text(&dir)]).expect(0);
    steadfs(["remount", "-o", "ro", text(&dir)]).expect(0);
    steadfs(["remount", "-o", "rw", text(&dir)]).expect(0);
    fs::remove_file(dir.join("file")).unwrap();
    let ended = steadfs(["umount", text(&dir)]).expect(0);
    assert_eq!(ended.err, "");
    let shown = steadfs(["cat", &format!("{uri}:/new")]).expect(0);
    assert_eq!(shown.out, "new");
    image.check_clean();
    let refused = steadfs(["mount", "-o", "takeover=on", &uri, text(&dir)]);
    assert!(refused.err.contains("option takeover"), "{}", refused.err);
}

#[test]
fn an_overlay_keeps_the_changes_of_an_export_that_takes_no_writes() {
    let scratch = Scratch::new();
    let image = empty(&scratch);
    steadfs(["format", "-q", text(image.path())]).expect(0);
    let before = fs::read(image.path()).unwrap();
    let server = NbdServer::start(
        &scratch,
        "nbdkit",
        &["--readonly", "file", text(image.path())],
    );
    let uri = server.uri("");
    let list = format!("overlay={}", scratch.join("overlay").display());
    let dir = scratch.folder("mnt");
    steadfs(["mount", "-o", &list, &uri, text(&dir)]).expect(0);
    write_synced(&dir, 1).unwrap();
    steadfs(["umount", text(&dir)]).expect(0);
    let shown = steadfs(["cat", "-o", &list, &format!("{uri}:/f1")]).expect(0);
    assert!(shown.out.as_bytes() == content(1));
    steadfs(["check", "-o", &list, &uri]).expect(0);
    assert_eq!(steadfs(["ls", &uri]).expect(0).out, "lost+found\n");
    assert!(fs::read(image.path()).unwrap() == before);
}

/// What fsync acknowledged survives a kill of the server, and the mount stops instead of hanging.
#[test]
fn a_killed_server_stops_the_mount_and_loses_nothing_synced() {
    let scratch = Scratch::new();
    let image = empty(&scratch);
    let args = [
        "--filter=delay",
        "file",
        text(image.path()),
        "delay-write=1ms",
    ];
    let server = NbdServer::start(&scratch, "nbdkit", &args);
    let uri = server.uri("");
    steadfs(["format", "-q", &uri]).expect(0);
    let dir = scratch.folder("mnt");
    steadfs(["mount", &uri, text(&dir)]).expect(0);
    let root = dir.clone();
    let writer = std::thread::spawn(move || {
        (0..)
            .take_while(|n| write_synced(&root, *n).is_ok())
            .count()
    });
    until("files are synced", || dir.join("f20").exists());
    server.kill();
    let synced = writer.join().unwrap();
    assert!(synced > 15, "{synced}");
    let errors = fs::read_to_string(dir.join(".steadfs/errors")).unwrap();
    assert!(errors.contains("NBD connection is lost"), "{errors}");
    let ended = steadfs(["umount", text(&dir)]);
    assert_ne!(ended.code(), 0, "{}", ended.err);

    let server = NbdServer::start(&scratch, "nbdkit", &["file", text(image.path())]);
    steadfs(["mount", &server.uri(""), text(&dir)]).expect(0);
    for n in 0..synced {
        assert!(
            fs::read(dir.join(format!("f{n}"))).unwrap() == content(n),
            "{n}"
        );
    }
    steadfs(["umount", text(&dir)]).expect(0);
    image.check_clean();
}

fn content(n: usize) -> Vec<u8> {
    n.to_string().repeat(3000).into_bytes()
}

fn write_synced(dir: &Path, n: usize) -> std::io::Result<()> {
    let mut file = File::create(dir.join(format!("f{n}")))?;
    file.write_all(&content(n))?;
    file.sync_all()
}

/// A qcow2 file, a partition table, and a server that takes one client at a time.
#[test]
fn a_partition_of_a_qcow2_file_is_used_through_qemu_nbd() {
    let scratch = Scratch::new();
    let (raw, disk) = (scratch.join("raw"), scratch.join("disk.qcow2"));
    File::create(&raw).unwrap().set_len(64 * MIB).unwrap();
    let script = "label: gpt\nstart=2048, size=40960, name=data\n";
    let table = format!("printf '{script}' | sfdisk -q {}", raw.display());
    succeed("sh", ["-c", &table]);
    let convert = [
        "convert",
        "-f",
        "raw",
        "-O",
        "qcow2",
        text(&raw),
        text(&disk),
    ];
    succeed("qemu-img", convert);
    let args = ["--format=qcow2", "--discard=unmap", text(&disk)];
    let server = NbdServer::start(&scratch, "qemu-nbd", &args);
    let uri = server.uri("");
    let part = format!("{uri}@data");
    steadfs(["format", "-q", &part]).expect(0);
    let source = scratch.join("source");
    fs::write(&source, "by qemu").unwrap();
    steadfs(["cp", text(&source), &format!("{part}:/a")]).expect(0);
    let shown = steadfs(["cat", &format!("{uri}@1:/a")]).expect(0);
    assert_eq!(shown.out, "by qemu");
    let unknown = steadfs(["ls", &server.uri("none")]);
    assert!(
        unknown.err.contains("no export \"none\""),
        "{}",
        unknown.err
    );
    drop(server);
    let back = scratch.join("back");
    let convert = [
        "convert",
        "-f",
        "qcow2",
        "-O",
        "raw",
        text(&disk),
        text(&back),
    ];
    succeed("qemu-img", convert);
    let checked = format!("{}?offset=1048576", back.display());
    succeed("e2fsck", ["-fn", &checked]);
}

/// An error of the server fails the request, and a failed FLUSH the mount.
#[test]
fn errors_of_the_server_reach_the_caller() {
    let scratch = Scratch::new();
    let (image, trigger) = (empty(&scratch), scratch.join("trigger"));
    let file = format!("error-file={}", trigger.display());
    let args = [
        "--filter=error",
        "file",
        text(image.path()),
        "error=EIO",
        "error-pwrite-rate=100%",
        &file,
    ];
    let server = NbdServer::start(&scratch, "nbdkit", &args);
    let uri = server.uri("");
    steadfs(["format", "-q", &uri]).expect(0);
    let dir = scratch.folder("mnt");
    steadfs(["mount", &uri, text(&dir)]).expect(0);
    write_synced(&dir, 0).unwrap();
    fs::write(&trigger, "").unwrap();
    assert!(write_synced(&dir, 1).is_err());
    fs::remove_file(&trigger).unwrap();
    let errors = fs::read_to_string(dir.join(".steadfs/errors")).unwrap();
    assert!(errors.contains("an I/O error (EIO)"), "{errors}");
    let _ = steadfs(["umount", text(&dir)]);
    let shown = steadfs(["cat", &format!("{uri}:/f0")]).expect(0);
    assert!(shown.out.into_bytes() == content(0));
    image.replay_by_e2fsck();
}

/// A folder with the certificates of an authority, of a server and of a client.
fn certificates(scratch: &Scratch, name: &str) -> PathBuf {
    let dir = scratch.folder(name);
    let config = dir.join("config");
    fs::write(&config, "[req]\ndistinguished_name = dn\n[dn]\n").unwrap();
    let path = |name: &str| text(&dir.join(name)).to_owned();
    let (ca, ca_key) = (path("ca-cert.pem"), path("ca-key.pem"));
    for (name, extensions) in [
        ("ca", "basicConstraints=critical,CA:TRUE"),
        ("server", "subjectAltName=DNS:localhost,DNS:disk.example"),
        ("client", "extendedKeyUsage=clientAuth"),
    ] {
        let (key, certificate) = (
            path(&format!("{name}-key.pem")),
            path(&format!("{name}-cert.pem")),
        );
        let subject = format!("/CN={name}");
        let mut words = vec![
            "req",
            "-x509",
            "-config",
            text(&config),
            "-days",
            "2",
            "-nodes",
        ];
        words.extend(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        words.extend([
            "-subj",
            &subject,
            "-addext",
            extensions,
            "-keyout",
            &key,
            "-out",
            &certificate,
        ]);
        if name != "ca" {
            words.extend(["-CA", &ca, "-CAkey", &ca_key]);
        }
        succeed("openssl", words);
    }
    dir
}

#[test]
fn encrypted_connections_are_used_and_verified() {
    let scratch = Scratch::new();
    let image = empty(&scratch);
    let known = certificates(&scratch, "known");
    let server = NbdServer::start_encrypted(&scratch, &known, image.path());
    let socket = server.socket.display();
    let with = |dir: &Path, more: &str| {
        format!(
            "nbds+unix:///?socket={socket}&tls-certificates={}{more}",
            dir.display()
        )
    };
    let uri = with(&known, "");
    steadfs(["format", "-q", &uri]).expect(0);
    let dir = scratch.folder("mnt");
    steadfs(["mount", "-o", "sandbox=on", &uri, text(&dir)]).expect(0);
    let content: Vec<u8> = (0..20_000_000_u32).map(|n| (n / 7) as u8).collect();
    fs::write(dir.join("file"), &content).unwrap();
    let ended = steadfs(["umount", text(&dir)]).expect(0);
    assert_eq!(ended.err, "");
    let out = scratch.join("out");
    let named = with(&known, "&tls-hostname=disk.example:/file");
    steadfs(["cp", &named, text(&out)]).expect(0);
    assert!(fs::read(&out).unwrap() == content);
    image.check_clean();

    let stranger = certificates(&scratch, "stranger");
    let without_client = scratch.folder("without");
    fs::copy(
        known.join("ca-cert.pem"),
        without_client.join("ca-cert.pem"),
    )
    .unwrap();
    for (uri, why) in [
        (server.uri(""), "requires TLS: write nbds://"),
        (with(&stranger, ""), "tls-certificates=DIRECTORY"),
        (
            with(&known, "&tls-hostname=other.example"),
            "tls-hostname=NAME",
        ),
        (with(&without_client, ""), "client-cert.pem"),
        (with(&scratch.join("none"), ""), "ca-cert.pem"),
    ] {
        let refused = steadfs(["ls", &uri]);
        assert_ne!(refused.code(), 0, "{uri}");
        assert!(refused.err.contains(why), "{uri}: {}", refused.err);
        assert_eq!(refused.err.lines().count(), 1, "{}", refused.err);
    }
}

/// What was acknowledged through TLS is there after the server was killed.
#[test]
fn a_killed_encrypted_server_stops_the_mount() {
    let scratch = Scratch::new();
    let image = empty(&scratch);
    let known = certificates(&scratch, "known");
    let server = NbdServer::start_encrypted(&scratch, &known, image.path());
    let (socket, known) = (server.socket.display().to_string(), known.display());
    let uri = format!("nbds+unix:///?socket={socket}&tls-certificates={known}");
    steadfs(["format", "-q", &uri]).expect(0);
    let dir = scratch.folder("mnt");
    steadfs(["mount", &uri, text(&dir)]).expect(0);
    write_synced(&dir, 1).unwrap();
    server.kill();
    until("the mount fails", || write_synced(&dir, 2).is_err());
    assert_ne!(steadfs(["umount", text(&dir)]).code(), 0);
    let server = NbdServer::start(&scratch, "nbdkit", &["file", text(image.path())]);
    let synced = steadfs(["cat", &format!("{}:/f1", server.uri(""))]).expect(0);
    assert!(synced.out.as_bytes() == content(1));
    image.check_clean();
}
