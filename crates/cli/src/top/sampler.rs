//! Reads the control files of one mount, from a thread of its own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfs::is_server_gone;
use steadfs_rt::{Instant, now};

use crate::control_file;

/// Counters of a mount at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub at: Instant,
    /// `io/stats.json`.
    pub io: Value,
    /// `fuse/stats.json`.
    pub fuse: Value,
    /// `cache/stats.json`.
    pub cache: Value,
    /// The format's name, and `jbd2/stats.json` or `f2fs/stats.json`; null for ext2 and read-only volumes.
    pub format: (&'static str, Value),
    /// `waiting.json`.
    pub waiting: Vec<Waiting>,
    /// The lines of `errors`.
    pub errors: Vec<String>,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub pid: u32,
    pub command: Option<String>,
    pub cgroup: Option<String>,
    pub operation: String,
    pub inode: u64,
    /// From the outermost in.
    pub steps: Vec<String>,
    /// Since the outermost began.
    pub milliseconds: f64,
}

/// What a server says.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Sample(Box<Sample>),
    /// The mount has no control files (`nocontrol`), or those of an older server.
    NoControl,
    /// The server has exited.
    Gone,
    /// It has not answered in time.
    Silent,
    /// Only the user who mounted may call it.
    Closed,
    Failed(String),
}

/// A thread that reads a mount when it is asked.
pub(super) struct Sampler {
    ask: Sender<()>,
    answers: Receiver<Answer>,
    /// The thread has not returned from the last reading.
    is_asked: bool,
}

impl Sampler {
    /// Starts the thread, which ends with the sampler, or with the process if the server never answers.
    pub fn start(mountpoint: &Path) -> Self {
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        let control = mountpoint.join(".steadfs");
        let thread = steadfs_rt::try_spawn("top", move || {
            while let Ok(()) = asked.recv() {
                if answer.send(read(&control)).is_err() {
                    break;
                }
            }
        });
        // Without a thread nothing is answered, and the mount is shown as silent.
        drop(thread);
        Self {
            ask,
            answers,
            is_asked: false,
        }
    }

    /// Asks the thread, unless it is still reading.
    pub fn ask(&mut self) {
        let is_reading = || matches!(self.answers.try_recv(), Err(TryRecvError::Empty));
        if self.is_asked && is_reading() {
            return;
        }
        self.is_asked = self.ask.send(()).is_ok();
    }

    /// Waits for the answer until `deadline`.
    pub fn answer(&mut self, deadline: Instant) -> Answer {
        let time = deadline.0.saturating_sub(now().0);
        match self
            .answers
            .recv_timeout(std::time::Duration::from_nanos(time))
        {
            Ok(answer) => {
                self.is_asked = false;
                answer
            }
            Err(_) => Answer::Silent,
        }
    }
}

fn read(control: &Path) -> Answer {
    match sample(control) {
        Ok(sample) => Answer::Sample(Box::new(sample)),
        Err(error) if is_server_gone(&error) => Answer::Gone,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM) => Answer::Closed,
            Some(Errno::NOENT) => Answer::NoControl,
            _ => Answer::Failed(error.to_string()),
        },
    }
}

fn sample(control: &Path) -> io::Result<Sample> {
    let file = |name: &str| -> PathBuf { control.join(name) };
    let parsed = |name: &str| -> io::Result<Value> {
        let text = control_file::read(&file(name))?;
        serde_json::from_str(&text).map_err(io::Error::other)
    };
    let optional = |name: &str| -> io::Result<Option<Value>> {
        match parsed(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        }
    };
    let fuse = parsed("fuse/stats.json")?;
    let at = now();
    let format = match optional("f2fs/stats.json")? {
        Some(value) => ("f2fs", value),
        None => ("ext4", optional("jbd2/stats.json")?.unwrap_or_default()),
    };
    let errors = control_file::read(&file("errors"))?;
    let waiting = serde_json::from_value(parsed("waiting.json")?).map_err(io::Error::other)?;
    Ok(Sample {
        at,
        io: parsed("io/stats.json")?,
        fuse,
        cache: parsed("cache/stats.json")?,
        waiting,
        format,
        errors: errors
            .lines()
            .filter(|line| *line != "none")
            .map(str::to_owned)
            .collect(),
    })
}
