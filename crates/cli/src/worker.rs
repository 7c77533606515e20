//! The process that parses a volume for this one.
//!
//! **Problem.** `cp` and `extract` need rights over the host, and the code that parses the volume must not have them.
//!
//! **Rule.** The volume is opened by a second process of this program, the worker. It opens the image, gives up all rights
//! (`sandbox`), and only then parses; this process reaches the volume by calls over a socket (`steadfs_remote`). It does
//! the work on the host, and trusts nothing that it receives. What the worker prints is shown line by line, without
//! control characters.
//!
//! The worker is in a process group of its own: an interrupt on the terminal reaches this process, which ends the copy and
//! closes the volume in order. When this process is gone the worker is killed.

pub mod state;
mod two_way;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use steadfs::image::Window;
use steadfs::tools::{owner_cx, printable_text};
use steadfs::{Error, Options, Origin, ReproducibleDevice, VolumeDevice};
use steadfs_remote::{Client, ConnectError, Greeting, Server};
use steadfs_vfs::FileSystem;

use crate::args;
use crate::failure::Failure;
use crate::stderr::say;
use crate::volume::{Access, Opened};
use crate::{log, sandbox};
use two_way::TwoWay;

/// The worker's own name in its argument list.
const NAME: &str = "steadfs-volume";
/// Longest answer of a worker that probes, in bytes.
const LINE_MAX: u64 = 4096;
/// Longest text in it, in characters of at most 4 bytes.
const TEXT_CHARS_MAX: usize = 1000;
/// Why an answer is of no use.
const NO_SUCH_ANSWER: &str = "it gives no such answer";

/// The answer for a partition that is no window of the file.
const LAYERED: &str = "layered\n";
/// The answer for a volume that no other node uses.
const UNUSED: &str = "unused\n";

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Opens the volume, and serves it.
    Serve(Access),
    /// The same in a simulation, so that what is written follows from the calls alone.
    Reproduce(Origin),
    /// Prints what the device holds.
    Probe,
    /// Prints where a partition of the disk is.
    Partition,
    /// Prints whether another node uses the volume.
    Nodes,
    /// Prints what the volume's marks say.
    State,
}

impl Task {
    /// As an argument of the worker.
    fn to_word(self) -> String {
        match self {
            Self::Serve(Access::Read) => "read".to_owned(),
            Self::Serve(Access::ReadBeside) => "beside".to_owned(),
            Self::Serve(Access::Write) => "write".to_owned(),
            Self::Serve(Access::Staged) => "staged".to_owned(),
            Self::Serve(Access::Trial) => "trial".to_owned(),
            Self::Probe => "probe".to_owned(),
            Self::Partition => "partition".to_owned(),
            Self::Nodes => "nodes".to_owned(),
            Self::State => "state".to_owned(),
            Self::Reproduce(Origin { time, uuid }) => {
                format!("{}:{}", time.secs, u128::from_be_bytes(uuid))
            }
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        match word {
            "read" => Some(Self::Serve(Access::Read)),
            "beside" => Some(Self::Serve(Access::ReadBeside)),
            "write" => Some(Self::Serve(Access::Write)),
            "staged" => Some(Self::Serve(Access::Staged)),
            "trial" => Some(Self::Serve(Access::Trial)),
            "probe" => Some(Self::Probe),
            "partition" => Some(Self::Partition),
            "nodes" => Some(Self::Nodes),
            "state" => Some(Self::State),
            _ => {
                let (secs, uuid) = word.split_once(':')?;
                Some(Self::Reproduce(Origin {
                    time: crate::fill::at(secs.parse().ok()?),
                    uuid: uuid.parse::<u128>().ok()?.to_be_bytes(),
                }))
            }
        }
    }
}

/// The command that runs a worker.
fn command(task: Task, list: &str, image: &Path) -> Command {
    // Workers inherit nothing that is open here.
    steadfs_rt::close_descriptors_on_exec();
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(NAME)
        .arg(task.to_word())
        .arg(list)
        .arg(seen_by_worker(image))
        // A preloaded library, such as fakeroot's, makes calls that are refused, and has no task there.
        .env_remove("LD_PRELOAD")
        .process_group(0);
    command
}

/// A path that names the same file in the worker: its descriptors are others.
fn seen_by_worker(image: &Path) -> PathBuf {
    let text = image.to_str().unwrap_or_default();
    let own = ["/dev/fd/", "/proc/self/fd/"].iter();
    let number = match text {
        "/dev/stdin" => Some(0),
        _ => own
            .filter_map(|folder| text.strip_prefix(folder)?.parse::<u32>().ok())
            .next(),
    };
    match number {
        Some(number) => PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id())),
        None => image.to_owned(),
    }
}

fn cannot_start(error: impl std::fmt::Display) -> Failure {
    let what = "cannot start the process that reads the volume";
    Failure::plain(format!("{what}: {error} (--sandbox=off does without)"))
}

/// Starts the task that shows what a worker prints on standard error, if that is piped.
fn start_printer(child: &mut Child) -> Result<Option<steadfs_rt::JoinHandle<()>>, Failure> {
    let printer = child.stderr.take().map(|pipe| {
        steadfs_rt::try_spawn("worker-messages", move || log::show(pipe)).map_err(cannot_start)
    });
    printer.transpose()
}

/// A running worker.
struct Worker {
    child: Child,
    printer: Option<steadfs_rt::JoinHandle<()>>,
}

impl Worker {
    fn start(task: Task, list: &str, image: &Path) -> Result<(Self, UnixStream), Failure> {
        let (ours, theirs) = UnixStream::pair().map_err(cannot_start)?;
        let mut child = command(task, list, image)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot_start)?;
        let printer = start_printer(&mut child)?;
        Ok((Self { child, printer }, ours))
    }

    /// Waits for the worker's end, and returns its cause if that was a signal.
    fn end(mut self) -> Option<String> {
        let status = self.child.wait().ok();
        if let Some(printer) = self.printer {
            printer.join();
        }
        let signal = status?.signal()?;
        let hint = match Signal::from_named_raw(signal) {
            Some(Signal::SYS) => ", a system call that the sandbox forbids: please report this",
            _ => "",
        };
        Some(format!(
            "the process that reads the volume was ended by signal {signal}{hint}"
        ))
    }
}

/// Calls `work` on the volume in `image`, which a worker opens and closes; both must succeed.
pub fn with_volume<T>(
    image: &Path,
    task: Task,
    list: &str,
    work: impl FnOnce(&dyn FileSystem) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (worker, stream) = Worker::start(task, list, image)?;
    let (client, greeting) = match Client::connect(TwoWay::new(stream)) {
        Ok(connected) => connected,
        Err(error) => {
            let died = worker.end();
            return Err(Failure::plain(match (error, died) {
                (ConnectError::Broken(_), Some(died)) => format!("{}: {died}", image.display()),
                (error, _) => error.to_string(),
            }));
        }
    };
    sandbox::report_missing(&greeting.missing);
    for warning in &greeting.warnings {
        say(format_args!(
            "steadfs: {}: {}",
            image.display(),
            printable_text(warning)
        ));
    }
    let done = match greeting.read_only_because {
        Some(reason) if !matches!(task, Task::Serve(Access::Read | Access::ReadBeside)) => Err(
            Failure::plain(format!("{}: can only be read: {reason}", image.display())),
        ),
        _ => work(&client),
    };
    let closed = match (&done, task) {
        // A worker whose client goes without closing drops the changes.
        (Err(_), Task::Serve(Access::Staged | Access::Trial)) => Ok(()),
        _ => client.close(),
    };
    drop(client);
    if let Some(died) = worker.end() {
        say(format_args!("steadfs: {}: {died}", image.display()));
    }
    match (done, closed) {
        (Err(failure), _) => Err(failure),
        (Ok(_), Err(error)) => Err(Failure::plain(error)),
        (Ok(value), Ok(())) => Ok(value),
    }
}

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A volume of this kind.
    Volume(String),
    /// Another format, in words.
    Known(String),
    /// It is in use.
    Failed(String),
    /// Nothing that is known.
    Unknown,
}

impl Content {
    /// What `found` shows.
    pub fn of(found: Result<steadfs::Kind, Error>) -> Self {
        match found {
            Ok(kind) => Self::Volume(kind.name().to_owned()),
            Err(Error::NoVolume { found, .. }) if found.is_known() => {
                Self::Known(found.to_string())
            }
            Err(error @ Error::Open(steadfs::OpenError::Busy { .. })) => {
                Self::Failed(error.to_string())
            }
            Err(_) => Self::Unknown,
        }
    }

    fn to_line(&self) -> String {
        match self {
            Self::Volume(kind) => line("volume", kind),
            Self::Known(what) => line("known", what),
            Self::Failed(why) => line("failed", why),
            Self::Unknown => line("unknown", ""),
        }
    }

    /// `None` if it is no line of [`Content::to_line`].
    fn of_line(line: &str) -> Option<Self> {
        let line = printable_text(line.strip_suffix('\n')?);
        Some(match line.split_once(' ')? {
            ("volume", kind) => Self::Volume(kind.to_owned()),
            ("known", what) => Self::Known(what.to_owned()),
            ("failed", why) => Self::Failed(why.to_owned()),
            ("unknown", _) => Self::Unknown,
            _ => return None,
        })
    }
}

/// Finds out what a device holds, in the sandbox by a worker.
pub fn content(
    image: &Path,
    list: &str,
    sandbox: Option<args::Sandbox>,
) -> Result<Content, Failure> {
    if sandbox::is_on(sandbox)? {
        return probe(image, list);
    }
    let options = Options::parse_to_read(list).map_err(Failure::plain)?;
    Ok(Content::of(steadfs::probe(image, &options)))
}

fn probe(image: &Path, list: &str) -> Result<Content, Failure> {
    let answer = answer_to(Task::Probe, list, image)?;
    Content::of_line(&answer).ok_or_else(|| no_answer(Task::Probe, image, NO_SUCH_ANSWER))
}

/// Finds out where a partition of a disk is, in the sandbox by a worker; `None` if it is no window of the file, so that the
/// process that opens the volume has to find it.
///
/// # Errors
/// Why there is no such partition.
pub fn partition(
    disk: &Path,
    which: &str,
    sandbox: Option<args::Sandbox>,
) -> Result<Option<Window>, Failure> {
    if !sandbox::is_on(sandbox)? {
        let found = VolumeDevice::open_disk(disk).and_then(|disk| disk.partition_window(which));
        return found.map_err(Failure::plain);
    }
    let answer = answer_to(Task::Partition, which, disk)?;
    if answer == LAYERED {
        return Ok(None);
    }
    let number = |text: &str| text.parse::<u64>().ok();
    if let Some(("found", place)) = answer.split_once(' ')
        && let Some((start, bytes)) = place.trim_end().split_once(' ')
        && let (Some(start), Some(bytes)) = (number(start), number(bytes))
    {
        return Ok(Some(Window { start, bytes }));
    }
    let why = answer
        .strip_prefix("none ")
        .map(|why| printable_text(why.trim_end()));
    Err(Failure::plain(why.unwrap_or_else(|| {
        format!("{}: its partitions could not be read", disk.display())
    })))
}

/// In the worker: prints where the partition is.
fn print_partition(disk: &Path, which: &str) -> Result<(), Failure> {
    let found = match VolumeDevice::open_disk(disk) {
        Ok(device) => {
            sandbox::enter(false)?;
            device.partition_window(which)
        }
        Err(error) => Err(error),
    };
    let line = match found {
        Ok(Some(found)) => format!("found {} {}\n", found.start, found.bytes),
        Ok(None) => LAYERED.to_owned(),
        Err(why) => line("none", &why.to_string()),
    };
    crate::output::print(|out| out.write_all(line.as_bytes()))
}

/// Checks that no other node uses the volume on a device that is to be written anew, in the sandbox by a worker. May take as
/// long as multiple-mount protection needs.
///
/// # Errors
/// One does.
pub fn check_nodes(
    image: &Path,
    list: &str,
    sandbox: Option<args::Sandbox>,
) -> Result<(), Failure> {
    if !sandbox::is_on(sandbox)? {
        log::start(false);
        return nodes(image, list, |_| Ok(()));
    }
    let answer = answer_to(Task::Nodes, list, image)?;
    match (&*answer, answer.strip_prefix("used ")) {
        (UNUSED, _) => Ok(()),
        (_, Some(why)) => Err(Failure::plain(printable_text(why.trim_end()))),
        _ => Err(no_answer(Task::Nodes, image, NO_SUCH_ANSWER)),
    }
}

/// Checks the volume after `enter`. A device that cannot be opened is no other node's: what follows reports the error.
fn nodes(
    image: &Path,
    list: &str,
    enter: impl FnOnce(&Options) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut options = Options::parse(list).map_err(Failure::plain)?;
    options.set_read_only(true);
    sandbox::adapt(&mut options)?;
    let Ok(device) = VolumeDevice::open(image, &options) else {
        return Ok(());
    };
    enter(&options)?;
    device.check_nodes().map_err(Failure::plain)
}

/// In the worker: prints whether another node uses the volume.
fn print_nodes(image: &Path, list: &str) -> Result<(), Failure> {
    let line = match nodes(image, list, |_| sandbox::enter(false).map(drop)) {
        Ok(()) => UNUSED.to_owned(),
        Err(failure) => line("used", &failure.message),
    };
    crate::output::print(|out| out.write_all(line.as_bytes()))
}

/// The error without an answer: nothing is known about the device then, also not that it is empty or unused. Content that ends
/// each worker would keep a device from being formatted, so the error names the way out.
fn no_answer(task: Task, image: &Path, why: &str) -> Failure {
    let image = image.display();
    let way_out = match task {
        Task::Probe | Task::Nodes => {
            "to overwrite it all the same, empty it with wipefs -a before, or add --sandbox=off"
        }
        _ => "set STEADFS_SANDBOX=off if its content is trusted",
    };
    Failure::plain(format!(
        "{image}: cannot be examined by a process without rights: {why}; {way_out}"
    ))
}

/// A line of an answer, cut to [`LINE_MAX`].
fn line(word: &str, text: &str) -> String {
    let text: String = text.chars().take(TEXT_CHARS_MAX).collect();
    format!("{word} {text}\n")
}

/// What a worker prints, a line, whose messages are shown where they explain a wait.
///
/// # Errors
/// The worker has failed, or was ended.
fn answer_to(task: Task, list: &str, image: &Path) -> Result<String, Failure> {
    let messages = match task {
        Task::Nodes => Stdio::piped(),
        _ => Stdio::null(),
    };
    let mut child = command(task, list, image)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(messages)
        .spawn()
        .map_err(cannot_start)?;
    let printer = start_printer(&mut child)?;
    let mut line = Vec::new();
    if let Some(out) = child.stdout.take() {
        out.take(LINE_MAX)
            .read_to_end(&mut line)
            .map_err(cannot_start)?;
    }
    let status = child.wait().map_err(cannot_start)?;
    if let Some(printer) = printer {
        printer.join();
    }
    if !status.success() || !line.ends_with(b"\n") {
        let why = format!("it has ended with {status}");
        return Err(no_answer(task, image, &why));
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Whether this process is to be a worker.
pub fn is_called(words: &[OsString]) -> bool {
    words.first().is_some_and(|word| word == NAME)
}

/// In the worker: does its task.
pub fn run(words: &[OsString]) -> Result<(), Failure> {
    let [_, task, list, image] = words else {
        return Err(Failure::plain("is started by steadfs only"));
    };
    let task = task.to_str().and_then(Task::of_word);
    let (Some(task), Some(list)) = (task, list.to_str()) else {
        return Err(Failure::plain("is started by steadfs only"));
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(Failure::plain)?;
    log::start(false);
    steadfs_rt::fault_point("worker");
    let image = Path::new(OsStr::from_bytes(image.as_bytes()));
    match task {
        Task::Probe => print_content(image, list),
        Task::Partition => print_partition(image, list),
        Task::Nodes => print_nodes(image, list),
        Task::State => state::print(image, list),
        Task::Serve(access) => serve(image, list, access),
        Task::Reproduce(origin) => reproduce(image, list, origin),
    }
}

fn print_content(image: &Path, list: &str) -> Result<(), Failure> {
    let mut options = Options::parse_to_read(list).map_err(Failure::plain)?;
    sandbox::adapt(&mut options)?;
    let content = match VolumeDevice::open(image, &options) {
        Ok(device) => {
            sandbox::enter(false)?;
            Content::of(device.kind())
        }
        Err(error) => Content::of(Err(error)),
    };
    crate::output::print(|out| out.write_all(content.to_line().as_bytes()))
}

/// The server of the process that started this one.
fn server() -> Result<Server<File>, Failure> {
    // As a file: the sandbox has no calls for sockets, but read(2) and write(2).
    let stream = std::io::stdin().as_fd().try_clone_to_owned();
    Ok(Server::new(File::from(stream.map_err(Failure::plain)?)))
}

fn gone(error: std::io::Error) -> Failure {
    Failure::plain(format!("the client is gone: {error}"))
}

fn serve(image: &Path, list: &str, access: Access) -> Result<(), Failure> {
    let server = server()?;
    match open(image, list, access) {
        Ok((opened, missing)) => {
            let served = answer(server, opened.volume(), missing);
            let closed = |opened: Opened| opened.close().map_err(|error| error.to_string());
            match served {
                Ok(Some(server)) => server.closed(closed(opened)).map_err(gone),
                // No client is there to get the result.
                Ok(None) => opened.abandon().or(Ok(())),
                Err(failure) => opened.abandon().or(Ok(())).and(Err(failure)),
            }
        }
        Err(failure) => server.refuse(&failure.message).map_err(gone),
    }
}

fn reproduce(image: &Path, list: &str, origin: Origin) -> Result<(), Failure> {
    let server = server()?;
    let options = Options::parse(list).map_err(Failure::plain)?;
    let device = match ReproducibleDevice::open(image, options.offset, origin) {
        Ok(device) => device,
        Err(error) => return server.refuse(&error.to_string()).map_err(gone),
    };
    let missing = sandbox::enter(false)?;
    let served = device.run(move |volume| match volume {
        Ok(volume) => match answer(server, &volume, missing) {
            Ok(Some(server)) => {
                let closed = volume.close().map_err(|error| error.to_string());
                server.closed(closed).map_err(gone)
            }
            Ok(None) => volume.close().or(Ok(())),
            Err(failure) => volume.close().or(Ok(())).and(Err(failure)),
        },
        Err(error) => server.refuse(&error.to_string()).map_err(gone),
    });
    served.map_err(Failure::plain)?
}

/// Answers calls on the volume until the client wants it closed; `None` if it is gone instead.
fn answer(
    mut server: Server<File>,
    volume: &steadfs::Volume,
    missing: Vec<String>,
) -> Result<Option<Server<File>>, Failure> {
    let report = volume.report();
    let greeting = Greeting {
        warnings: report.warnings.clone(),
        read_only_because: report.read_only_because.first().cloned(),
        missing,
    };
    let served = server
        .greet(&greeting)
        .and_then(|()| server.serve(&*volume.fs(), &owner_cx()));
    match served {
        Ok(true) => Ok(Some(server)),
        Ok(false) => Ok(None),
        Err(error) => Err(gone(error)),
    }
}

/// Opens the image, gives up all rights, then opens the volume.
fn open(image: &Path, list: &str, access: Access) -> Result<(Opened, Vec<String>), Failure> {
    let options = match access {
        Access::Read | Access::ReadBeside => Options::parse_to_read(list),
        // The error names options that do not suit the kind of volume.
        Access::Write | Access::Staged | Access::Trial => Options::parse_by(list, |options| {
            let mut options = options.clone();
            options.set_read_only(true);
            sandbox::adapt(&mut options).ok()?;
            let device = VolumeDevice::open(image, &options).ok()?;
            sandbox::enter(false).ok()?;
            device.kind().ok()
        }),
    };
    let mut options = options.map_err(Failure::plain)?;
    sandbox::adapt(&mut options)?;
    let device = access.open(image, &options).map_err(Failure::plain)?;
    let missing = sandbox::enter(access.is_write())?;
    Ok((access.volume(device).map_err(Failure::plain)?, missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_a_long_path_is_a_whole_line() {
        let path = "\u{1F4BE}".repeat(5000);
        let answer = Content::Failed(format!("{path}: in use")).to_line();
        assert!(answer.len() as u64 <= LINE_MAX);
        let Some(Content::Failed(why)) = Content::of_line(&answer) else {
            panic!("{answer}");
        };
        assert!(path.starts_with(&why));
    }

    #[test]
    fn what_is_no_whole_answer_is_not_taken_for_one() {
        for content in [
            Content::Volume("ext4".to_owned()),
            Content::Known("a PNG image".to_owned()),
            Content::Failed("in use".to_owned()),
            Content::Unknown,
        ] {
            assert_eq!(Content::of_line(&content.to_line()), Some(content));
        }
        for cut in ["", "\n", "unknown", "unknown ", "vol ext4\n"] {
            assert_eq!(Content::of_line(cut), None, "{cut:?}");
        }
    }
}
