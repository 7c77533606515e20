//! Programs that stop, or that open more than others: the server serves the rest, within its memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process};
use steadfs_suite::command::until;
use steadfs_suite::{Image, Scratch, SteadMount, judge};

const MIB: u64 = 1 << 20;
/// `cache_size` of the mounts, in bytes.
const CACHE: u64 = 16 * MIB;
/// What a server may use beside its caches.
const BESIDES: u64 = 64 * MIB;
/// Limit for calls of others, on a machine of any load: a server that waits for a stopped program never makes them.
const WAIT_MAX: Duration = Duration::from_secs(30);

fn mount(scratch: &Scratch) -> (Image, SteadMount) {
    let args = ["-t", "ext4", "-N", "130000"];
    let image = Image::mke2fs(scratch, "a.img", 1 << 30, &args);
    let options = format!("cache_size={}M", CACHE / MIB);
    let mount = SteadMount::new(scratch, image.path(), &options);
    (image, mount)
}

#[track_caller]
fn check_memory(mount: &SteadMount) {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    let peak = kib.parse::<u64>().unwrap() << 10;
    println!("{} MiB", peak / MIB);
    assert!(peak < CACHE + BESIDES, "{} MiB of memory", peak / MIB);
}

/// What other programs do meanwhile.
#[track_caller]
fn others_are_served(root: &Path, round: u32) {
    let begin = Instant::now();
    let dir = root.join(format!("others {round}"));
    fs::create_dir(&dir).unwrap();
    for number in 0..50 {
        let name = dir.join(number.to_string());
        let mut file = File::create(&name).unwrap();
        file.write_all(&[7; 5000]).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(&name).unwrap(), [7; 5000]);
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 50);
    let time = begin.elapsed();
    assert!(time < WAIT_MAX, "others needed {time:?}");
}

/// A program that keeps requests of all kinds pending: each process of it writes, syncs, renames and lists.
const BUSY: &str = "
    for my $n (1 .. 24) {
        next if fork;
        my $d = qq($ARGV[0]/busy$n);
        mkdir $d;
        open(my $f, '+>', qq($d/f)) or die $!;
        while (1) {
            sysseek $f, 0, 0;
            syswrite $f, 'x' x 300_000;
            $n % 3 ? rename(qq($d/f), qq($d/g)) : IO::Handle::sync($f);
            rename(qq($d/g), qq($d/f));
            opendir(my $all, $ARGV[0]); my @names = readdir $all;
        }
    }
    sleep 1 while 1;
";

fn signal_group(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process_group(pid, signal).unwrap();
}

/// A program that stops at any moment delays no other one, and goes on when it is continued.
#[test]
fn a_stopped_client_with_pending_requests_holds_up_no_other() {
    use std::os::unix::process::CommandExt;
    let scratch = Scratch::new();
    let (_, mount) = mount(&scratch);
    let mut busy = Command::new(judge("perl"))
        .args(["-MIO::Handle", "-e", BUSY])
        .arg(mount.root())
        .process_group(0)
        .spawn()
        .unwrap();
    until("all processes have files", || {
        (1..=24).all(|n| mount.join(&format!("busy{n}")).exists())
    });
    for round in 0..6 {
        std::thread::sleep(Duration::from_millis(150));
        signal_group(&busy, Signal::STOP);
        others_are_served(mount.root(), round);
        signal_group(&busy, Signal::CONT);
    }
    check_memory(&mount);
    // Stopped for good: a program that was killed in the middle of its calls leaves nothing.
    signal_group(&busy, Signal::STOP);
    signal_group(&busy, Signal::KILL);
    busy.wait().unwrap();
    mount.unmount();
}

/// A process that holds files open until its input ends.
struct Holder {
    process: Child,
    input: Option<ChildStdin>,
}

impl Holder {
    /// Makes and opens files `first..last`.
    fn open(dir: &Path, first: u64, last: u64) -> Self {
        const OPEN: &str = "
            my @held;
            for my $n ($ARGV[1] .. $ARGV[2] - 1) {
                open(my $f, '+>', qq($ARGV[0]/$n)) or die qq($n: $!);
                syswrite $f, 'x';
                push @held, $f;
            }
            $| = 1;
            print qq(open\\n);
            <STDIN>;
        ";
        let mut process = Command::new(judge("perl"))
            .args(["-e", OPEN])
            .arg(dir)
            .args([first.to_string(), last.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "open\n", "files {first} to {last}");
        let input = process.stdin.take();
        Self { process, input }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap()
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.process.wait().unwrap().success());
    }
}

/// 100 000 open files of processes that have stopped.
#[test]
fn a_hundred_thousand_open_files_stay_within_memory() {
    const FILES: u64 = 100_000;
    let scratch = Scratch::new();
    let (image, mount) = mount(&scratch);
    let dir = mount.join("open");
    fs::create_dir(&dir).unwrap();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(FILES);
    let each = limit.saturating_sub(50).min(FILES);
    let starts = (0..FILES).step_by(usize::try_from(each).unwrap());
    let holders: Vec<_> = starts
        .map(|first| Holder::open(&dir, first, (first + each).min(FILES)))
        .collect();
    for holder in &holders {
        kill_process(holder.pid(), Signal::STOP).unwrap();
    }
    others_are_served(mount.root(), 0);
    check_memory(&mount);
    for holder in holders {
        kill_process(holder.pid(), Signal::CONT).unwrap();
        holder.end();
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count() as u64, FILES);
    check_memory(&mount);
    mount.unmount();
    image.check_clean();
}
