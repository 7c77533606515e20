//! Messages between broker and server, as text.

use steadfs_rt::cpu::ThreadRequest;

use super::server::VolumeFacts;
use crate::host::{Answer, Question};
use steadfs_rt::groups::Weight;

/// What a server asks of its broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Question(Question),
    /// Another descriptor of the FUSE device.
    Device,
    /// A file for the result of closing the volume, which the broker keeps open, and the number of its descriptor.
    CloseResult,
    Mount(VolumeFacts),
    Detach,
    /// The mount is usable.
    Usable,
    /// The volume's device, opened for writing; a block device claimed with O_EXCL if `claim`.
    Reopen {
        claim: bool,
    },
    /// The server has opened these files ([`VolumeFiles`](super::VolumeFiles)).
    Files(String),
    /// What a successor needs if this server ends without handing over; empty: it has none.
    Standby(String),
    /// The file for the records of the mount's calls.
    Record,
    /// A successor for this server.
    Upgrade,
    /// Whether the server with this number has its successor.
    Progress(u32),
    /// Of a successor: the connection, the legacy, and the file of records if there is one.
    TakeOver,
}

impl Request {
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Question(Question::IsAdmin(pid)) => format!("admin {pid}"),
            Self::Question(Question::IsDying(pid)) => format!("dying {pid}"),
            Self::Question(Question::ProcessOf(pid)) => format!("process {pid}"),
            Self::Question(Question::HasEnded(process)) => format!("ended {process}"),
            Self::Question(Question::ShutdownMode { pid, address }) => {
                format!("shutdown {pid} {address}")
            }
            Self::Question(Question::IsInGroup { pid, gid }) => format!("member {pid} {gid}"),
            Self::Question(Question::GroupOf(pid)) => format!("group {pid}"),
            Self::Question(Question::CommandOf(pid)) => format!("command {pid}"),
            Self::Question(Question::WeightOf(group)) => format!("weight {group}"),
            Self::Question(Question::Thread(tid, ThreadRequest::LeaveIdle)) => {
                format!("normal {tid}")
            }
            Self::Question(Question::Thread(tid, ThreadRequest::RealTimeIo(level))) => {
                format!("realtime {tid} {level}")
            }
            Self::Device => "device".to_owned(),
            Self::CloseResult => "result".to_owned(),
            Self::Mount(facts) => format!(
                "mount {} {}",
                u8::from(facts.read_only),
                facts.block_size.unwrap_or(0)
            ),
            Self::Detach => "detach".to_owned(),
            Self::Usable => "usable".to_owned(),
            Self::Reopen { claim } => format!("reopen {}", u8::from(*claim)),
            Self::Files(ids) => format!("files {ids}"),
            Self::Standby(text) => format!("standby {text}"),
            Self::Record => "record".to_owned(),
            Self::Upgrade => "upgrade".to_owned(),
            Self::Progress(server) => format!("progress {server}"),
            Self::TakeOver => "take-over".to_owned(),
        }
    }

    /// `None` for any other text.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let question = match word {
            "admin" => Question::IsAdmin(rest.parse().ok()?),
            "dying" => Question::IsDying(rest.parse().ok()?),
            "process" => Question::ProcessOf(rest.parse().ok()?),
            "ended" => Question::HasEnded(rest.parse().ok()?),
            "group" => Question::GroupOf(rest.parse().ok()?),
            "command" => Question::CommandOf(rest.parse().ok()?),
            "weight" => Question::WeightOf(group(rest)?.to_owned()),
            "normal" => Question::Thread(rest.parse().ok()?, ThreadRequest::LeaveIdle),
            "realtime" => {
                let (tid, level) = rest.split_once(' ')?;
                let level = level.parse().ok().filter(|level| *level <= 7)?;
                Question::Thread(tid.parse().ok()?, ThreadRequest::RealTimeIo(level))
            }
            "member" => {
                let (pid, gid) = rest.split_once(' ')?;
                let (pid, gid) = (pid.parse().ok()?, gid.parse().ok()?);
                Question::IsInGroup { pid, gid }
            }
            "shutdown" => {
                let (pid, address) = rest.split_once(' ')?;
                let (pid, address) = (pid.parse().ok()?, address.parse().ok()?);
                Question::ShutdownMode { pid, address }
            }
            _ => return Self::decode_action(word, rest),
        };
        Some(Self::Question(question))
    }

    fn decode_action(word: &str, rest: &str) -> Option<Self> {
        Some(match word {
            "device" => Self::Device,
            "result" => Self::CloseResult,
            "mount" => {
                let (read_only, size) = rest.split_once(' ')?;
                let size = size.parse().ok()?;
                Self::Mount(VolumeFacts {
                    read_only: read_only.parse::<u8>().ok()? != 0,
                    block_size: (size > 0).then_some(size),
                })
            }
            "detach" => Self::Detach,
            "usable" => Self::Usable,
            "reopen" => Self::Reopen { claim: rest == "1" },
            "files" => Self::Files(rest.to_owned()),
            "standby" => Self::Standby(rest.to_owned()),
            "record" => Self::Record,
            "upgrade" => Self::Upgrade,
            "progress" => Self::Progress(rest.parse().ok()?),
            "take-over" => Self::TakeOver,
            _ => return None,
        })
    }
}

/// A cgroup's path that stays below the hierarchy's root.
fn group(path: &str) -> Option<&str> {
    let stays = path.starts_with('/') && !path.contains('\0');
    let climbs = path.split('/').any(|name| name == "..");
    (stays && !climbs).then_some(path)
}

/// What a broker replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Answer(Answer),
    /// It is done; a descriptor comes with it if one was asked for.
    Done,
    /// It failed; the broker reports why.
    Failed,
    /// It failed for this reason, which the server reports.
    Refused(String),
}

impl Reply {
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Answer(Answer::Unknown) => "unknown".to_owned(),
            Self::Answer(Answer::Is(is)) => format!("is {}", u8::from(*is)),
            Self::Answer(Answer::Word(word)) => format!("word {word}"),
            Self::Answer(Answer::Group(group)) => format!("group {group}"),
            Self::Answer(Answer::Weight(Weight::Is(weight))) => format!("weight {weight}"),
            Self::Answer(Answer::Weight(Weight::Default)) => "weight default".to_owned(),
            Self::Answer(Answer::Weight(Weight::Gone)) => "weight gone".to_owned(),
            Self::Done => "done".to_owned(),
            Self::Failed => "failed".to_owned(),
            Self::Refused(why) => format!("refused {why}"),
        }
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let answer = match word {
            "unknown" => Answer::Unknown,
            "is" => Answer::Is(rest == "1"),
            "word" => Answer::Word(rest.parse().ok()?),
            "group" => Answer::Group(rest.to_owned()),
            "weight" => Answer::Weight(match rest {
                "default" => Weight::Default,
                "gone" => Weight::Gone,
                weight => Weight::Is(weight.parse().ok()?),
            }),
            "done" => return Some(Self::Done),
            "failed" => return Some(Self::Failed),
            "refused" => return Some(Self::Refused(rest.to_owned())),
            _ => return None,
        };
        Some(Self::Answer(answer))
    }
}
