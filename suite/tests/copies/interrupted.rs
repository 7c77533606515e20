//! Copies that end early, and their progress.

use super::*;

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_child(child);
    kill_process(pid, signal).unwrap();
}

/// Bytes that a program has read so far; 0 after its end.
fn bytes_read(child: &Child) -> u64 {
    let counts = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
    let line = counts.lines().find_map(|l| l.strip_prefix("rchar: "));
    line.map_or(0, |number| number.parse().unwrap())
}

#[test]
fn interrupted_copies_leave_consistent_volumes() {
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    for n in 0..3000 {
        fs::write(source.join(n.to_string()), vec![n as u8; 30_000]).unwrap();
    }
    let source = source.to_str().unwrap();
    for (kind, sent) in [
        ("ext2", Signal::INT),
        ("ext4", Signal::INT),
        ("ext2", Signal::TERM),
        ("ext4", Signal::HUP),
    ] {
        // Again if the copy was finished before we could look.
        let stopped = (0..50).any(|_| {
            let volume = image(&scratch, "a.img", kind, 256 * MIB);
            let mut child = Command::new(program())
                .args(["cp", "-r", source, &at(&volume, "/")])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            until("a tenth is read", || {
                bytes_read(&child) > 9_000_000 || child.try_wait().unwrap().is_some()
            });
            signal(&child, sent);
            let status = wait(&mut child, PATIENCE).unwrap();
            volume.check_clean();
            assert!(!volume.needs_recovery());
            let count = steadfs(["ls", &at(&volume, "/source")]).out.lines().count();
            let stopped = status.signal() == Some(sent.as_raw());
            assert!(stopped || status.success(), "{status}");
            let mut output = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut output)
                .unwrap();
            // A signal that arrives before the program handles signals ends it as it ends any other program.
            assert!(output.is_empty() || output.contains("stopped"), "{output}");
            fs::remove_file(volume.path()).unwrap();
            stopped && count > 0 && count < 3000
        });
        assert!(stopped, "{kind}: no copy was stopped in its middle");
    }
}

/// Runs the program on a terminal, and stops it for a while when `begun` is true.
fn on_a_terminal(scratch: &Scratch, words: &[&str], begun: impl Fn() -> bool) -> String {
    let pid = scratch.join("pid");
    // From another run.
    let _ = fs::remove_file(&pid);
    let line = format!(
        "echo $$ >{}; exec {} {}",
        pid.display(),
        program().display(),
        words.join(" ")
    );
    let mut script = Command::new("script");
    script
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        // A terminal with capabilities, independent of the one that the tests run on.
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut out = out;
        out.read_to_end(&mut text).map(|_| text)
    });
    let end = Instant::now() + PATIENCE;
    while !begun() && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "{words:?} does not begin");
        std::thread::yield_now();
    }
    let number = fs::read_to_string(&pid).unwrap_or_default();
    let number = number.trim().parse().ok().and_then(Pid::from_raw);
    if let Some(number) = number.filter(|_| child.try_wait().unwrap().is_none()) {
        // The program may have ended.
        if kill_process(number, Signal::STOP).is_ok() {
            sleep(Duration::from_millis(600));
            // script(1) stops itself with its child, and continues it.
            signal(&child, Signal::CONT);
            let _ = kill_process(number, Signal::CONT);
        }
    }
    let status = wait(&mut child, PATIENCE).unwrap();
    let text = String::from_utf8_lossy(&reader.join().unwrap().unwrap()).into_owned();
    assert!(status.success(), "{words:?}: {status}\n{text}");
    text
}

#[test]
fn progress_is_shown_on_a_terminal_only() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 256 * MIB);
    let source = scratch.folder("source");
    for n in 0..100 {
        fs::write(source.join(n.to_string()), vec![n as u8; 1 << 20]).unwrap();
    }
    let source = source.to_str().unwrap();
    let place = at(&volume, "/source");
    cp(&["-r", source, &at(&volume, "/")]);
    let shown = (0..50).any(|_| {
        let out: PathBuf = scratch.join("out");
        let _ = fs::remove_dir_all(&out);
        let words = ["extract", &place, out.to_str().unwrap()];
        // The order of the files is that of their hashes, which differ from volume to volume.
        let text = on_a_terminal(&scratch, &words, || {
            fs::read_dir(&out).is_ok_and(|mut files| files.next().is_some())
        });
        text.contains("MiB of about 100.") && text.contains("files: /source/")
    });
    assert!(shown, "no progress was shown in 50 runs");
    let out = scratch.join("quiet");
    let output = steadfs(["extract", &place, out.to_str().unwrap()]).expect(0);
    assert_eq!((output.out.as_str(), output.err.as_str()), ("", ""));
    // An error is a line of its own; the progress line is erased before.
    let line = format!("{} extract {place} {}", program().display(), out.display());
    let failed = run("script", ["-qec", &line, "/dev/null"]);
    assert_eq!(failed.code(), 1);
    assert!(
        failed.out.lines().any(|line| line.contains("File exists")),
        "{}",
        failed.out
    );
}

/// To readers that do not read, to a pipe without one, and to one that a hole of 1 TiB is copied to.
#[test]
fn copies_to_pipes_end_by_a_signal() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "image", "ext4", 16 * MIB);
    let (dense, sparse) = (scratch.join("dense"), scratch.join("sparse"));
    fs::write(&dense, vec![1; 1 << 20]).unwrap();
    fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    cp(&[
        dense.to_str().unwrap(),
        sparse.to_str().unwrap(),
        &at(&volume, "/"),
    ]);
    let pipe = scratch.join("pipe");
    run("mkfifo", [&pipe]).expect(0);
    let named = pipe.to_str().unwrap();
    for (command, from, to, read) in [
        ("cp", "/dense", "-", false),
        ("cp", "/sparse", "-", true),
        ("cp", "/dense", named, false),
        ("cp", "/dense", named, true),
        ("cp", "/sparse", named, true),
        ("tar", "/dense", "-", false),
        ("tar", "/dense", named, false),
        ("tar", "/dense", named, true),
    ] {
        let place = at(&volume, from);
        let words: &[&str] = match command {
            "cp" => &["cp", &place, to],
            _ => &["tar", &place, "-f", to],
        };
        let mut command = Command::new(program());
        command.args(words);
        // A pipe that is open for reading and writing always has a reader.
        let mut options = fs::File::options();
        let reader = options.read(true).write(true).open(&pipe).unwrap();
        let mut child = match to {
            "-" => command.stdout(reader.try_clone().unwrap()).spawn().unwrap(),
            _ => command.stdout(Stdio::null()).spawn().unwrap(),
        };
        let mut held = read.then_some(reader);
        let reader = held.take_if(|_| from == "/sparse");
        let thread = reader.map(|mut reader| {
            std::thread::spawn(move || {
                let mut buffer = vec![1; 1 << 16];
                // Until the marker behind the end of the copy.
                while let Ok(n) = reader.read(&mut buffer)
                    && !buffer[..n].contains(&2)
                {}
            })
        });
        sleep(Duration::from_millis(500));
        assert_eq!(child.try_wait().unwrap(), None, "{words:?}");
        signal(&child, Signal::TERM);
        let status = wait(&mut child, Duration::from_secs(10));
        assert_eq!(status.unwrap().signal(), Some(15), "{words:?}");
        if let Some(thread) = thread {
            fs::write(&pipe, [2]).unwrap();
            thread.join().unwrap();
        }
    }
}

/// Each close(2) of a file named `lost` closes it and fails, as on NFS when what was written does not fit.
const CLOSE_FAILS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int close(int fd) {
    static int (*next)(int);
    char link[64], path[4096];
    ssize_t len;
    int done;
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "close");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    len = readlink(link, path, sizeof path);
    done = next(fd);
    if (len < 4 || memcmp(path + len - 4, "lost", 4)) return done;
    errno = ENOSPC;
    return -1;
}
"#;

#[test]
fn an_error_that_close_reports_fails_the_command() {
    let scratch = Scratch::new();
    let (source, library) = (scratch.join("close.c"), scratch.join("close.so"));
    fs::write(&source, CLOSE_FAILS).unwrap();
    let [from, to] = [&source, &library].map(|path| path.to_str().unwrap());
    run("cc", ["-shared", "-fPIC", "-o", to, from]).expect(0);
    let volume = image(&scratch, "image", "ext4", 16 * MIB);
    let file = scratch.join("file");
    fs::write(&file, "content").unwrap();
    cp(&[file.to_str().unwrap(), &at(&volume, "/lost")]);
    let (from, lost) = (at(&volume, "/lost"), scratch.join("lost"));
    let out = lost.to_str().unwrap();
    for words in [
        &["cp", &from, out][..],
        &["tar", &at(&volume, "/"), "-f", out],
        &["cat", &from],
        &["cp", &from, "-"],
        &["tar", &at(&volume, "/")],
    ] {
        let mut command = Command::new(program());
        command.arg(words[0]).arg("--sandbox=off").args(&words[1..]);
        command.env("LD_PRELOAD", &library);
        if !words.contains(&out) {
            command.stdout(fs::File::create(&lost).unwrap());
        }
        let output = command.stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let messages = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {messages}");
        assert!(messages.contains("No space left"), "{words:?}: {messages}");
        // Of a copy that has failed nothing is left.
        assert_eq!(
            lost.exists(),
            words[..2] != ["cp", &from] || words[2] == "-"
        );
        let _ = fs::remove_file(&lost);
    }
}
