//! The options and control files of a volume's queue.

mod metrics;

use std::sync::Arc;

use steadfs_base::{GroupId, IoPrio, IoTag};
#[cfg(feature = "mount")]
use steadfs_block::Policy;
use steadfs_block::Queue;
#[cfg(feature = "mount")]
use steadfs_fuse::Owners;
use steadfs_rt::groups::{GroupTable, Groups};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::options::{item, items};
use steadfs_vfs::{
    Control, ControlEntry, ControlLayer, FsError, Metrics, PreparedOptions, Result, Setter,
};

use crate::IoOptions;

/// A volume's queue with its options, and the owners of its requests.
pub struct Io {
    shared: Arc<Shared>,
}

/// The owner to whom a library's calls are charged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The group, a path from the root such as `/backup`; `/` for the root. Its weight is that of `cgroup_weight=`, else
    /// that of the cgroup at this path, else 100.
    pub group: String,
    /// The I/O priority.
    pub prio: IoPrio,
}

struct Shared {
    queue: Arc<Queue>,
    groups: Arc<GroupTable>,
    /// Maps the processes that use a mount to the owners of their I/O.
    #[cfg(feature = "mount")]
    owners: Arc<Owners>,
    options: Mutex<IoOptions>,
}

/// The groups of the host.
#[cfg(feature = "mount")]
fn host_groups(to: Arc<dyn Groups>) -> GroupTable {
    steadfs_fuse::host_groups(to)
}

/// The groups of the host. Without mounts no other process is asked for them.
#[cfg(not(feature = "mount"))]
fn host_groups(to: Arc<dyn Groups>) -> GroupTable {
    use std::sync::OnceLock;
    use steadfs_rt::groups::Hierarchy;
    static HIERARCHY: OnceLock<Option<Hierarchy>> = OnceLock::new();
    let hierarchy = HIERARCHY.get_or_init(Hierarchy::find).clone();
    GroupTable::new(Box::new(hierarchy), to)
}

/// Passes changes of groups from the owners to the queue.
struct ToQueue(Arc<Queue>);

impl Groups for ToQueue {
    fn set(&self, group: GroupId, parent: GroupId, weight: u32) {
        self.0.set_group(group, parent, weight);
    }

    fn forget(&self, group: GroupId) {
        self.0.forget_group(group);
    }
}

impl Shared {
    /// Applies items of a list that has been checked.
    fn set(&self, list: &[(String, Option<String>)]) {
        let mut options = self.options.lock();
        for (name, value) in list {
            let known = options.set(name, value.as_deref());
            debug_assert_eq!(known, Ok(true), "the list was checked");
        }
        self.apply(&options);
    }

    fn apply(&self, options: &IoOptions) {
        if self.queue.settings() != options.queue {
            self.queue.configure(options.queue);
        }
        self.groups.set_weights(options.group_weights.clone());
        #[cfg(feature = "mount")]
        self.owners.use_groups(options.queue.policy != Policy::Fifo);
    }

    /// The statistics of the queue, by group paths.
    fn stats(&self) -> String {
        self.queue.stats().to_json_with(self.names())
    }

    /// Paths and weights of groups.
    fn names(&self) -> impl Fn(GroupId) -> Option<(String, u32)> {
        let groups = self.groups.list();
        move |wanted: GroupId| {
            let found = groups.iter().find(|(_, group, _)| *group == wanted);
            let root = (wanted == GroupId(0)).then(|| ("/".to_owned(), 100));
            found
                .map(|(path, _, weight)| (path.clone(), *weight))
                .or(root)
        }
    }

    /// The queued requests, and the paths of the groups.
    fn describe(&self) -> String {
        let mut text = self.queue.describe();
        for (path, group, weight) in self.groups.list() {
            text.push_str(&format!("group {} is {path}, weight {weight}\n", group.0));
        }
        text
    }
}

impl Io {
    pub(crate) fn new(queue: Arc<Queue>, options: IoOptions) -> Self {
        let groups = Arc::new(host_groups(Arc::new(ToQueue(Arc::clone(&queue)))));
        let shared = Shared {
            queue,
            #[cfg(feature = "mount")]
            owners: Arc::new(Owners::with_groups(Arc::clone(&groups))),
            groups,
            options: Mutex::new(Rank::Mount, options),
        };
        shared.apply(&shared.options.lock());
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The current options.
    pub fn options(&self) -> IoOptions {
        self.shared.options.lock().clone()
    }

    /// The tag for a library's calls, for their [`Cx`](steadfs_vfs::Cx).
    pub fn tag(&self, caller: &Caller) -> IoTag {
        IoTag {
            prio: caller.prio,
            group: self.shared.groups.group(&caller.group),
            ..IoTag::default()
        }
    }

    /// Maps processes to the owners of their I/O.
    #[cfg(feature = "mount")]
    pub(crate) fn owners(&self) -> &Arc<Owners> {
        &self.shared.owners
    }

    /// The queue.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.shared.queue
    }
}

impl ControlLayer for Io {
    fn prepare(&self, list: &str) -> Result<PreparedOptions> {
        let mut rest = Vec::new();
        let mut own = Vec::new();
        let mut trial = self.options();
        for (name, value) in items(list) {
            if trial.set(name, value)? {
                own.push((name.to_owned(), value.map(str::to_owned)));
            } else {
                rest.push(item(name, value));
            }
        }
        let shared = Arc::clone(&self.shared);
        Ok(PreparedOptions {
            rest: rest.join(","),
            apply: Box::new(move || shared.set(&own)),
        })
    }

    fn options(&self) -> String {
        self.shared.options.lock().show()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Control for Io {
    fn entries(&self) -> Vec<ControlEntry> {
        let file = |path, writable| ControlEntry { path, writable };
        vec![
            file("io/scheduler", true),
            file("io/queue", false),
            file("io/stats.json", false),
        ]
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let queue = &self.shared.queue;
        let mut text = match path {
            "io/scheduler" => queue.describe_policies(),
            "io/queue" => self.shared.describe(),
            "io/stats.json" => self.shared.stats(),
            _ => return Err(FsError::NotFound),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text.into_bytes())
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<()> {
        if path != "io/scheduler" {
            return Err(FsError::NotPermitted);
        }
        let name = std::str::from_utf8(value).unwrap_or_default().trim();
        Control::prepare(self, path, name)?();
        Ok(())
    }

    fn metrics(&self, metrics: &mut Metrics) {
        metrics::add(&self.shared.queue.stats(), self.shared.names(), metrics);
    }

    fn tunables(&self) -> Vec<&'static str> {
        vec!["io/scheduler"]
    }

    fn prepare(&self, path: &str, value: &str) -> Result<Setter<'_>> {
        if path != "io/scheduler" || value.contains(',') {
            return Err(FsError::BadOption("is one word".to_owned()));
        }
        let prepared = ControlLayer::prepare(self, &format!("io_scheduler={value}"))?;
        Ok(prepared.apply)
    }
}

#[cfg(test)]
mod tests {
    use steadfs_block::{MemDevice, Policy, QueueOptions};

    use super::*;

    #[test]
    fn a_list_is_taken_whole_or_not_at_all() {
        let device = Arc::new(MemDevice::new(1 << 20));
        let queue = Arc::new(Queue::new(device, QueueOptions::default()));
        let io = Io::new(Arc::clone(&queue), IoOptions::default());
        assert_eq!(queue.settings().policy, Policy::Fair);
        let prepared = ControlLayer::prepare(&io, "io_scheduler=fifo,commit=9,noboost,ro").unwrap();
        assert_eq!(prepared.rest, "commit=9,ro");
        assert_eq!(queue.settings().policy, Policy::Fair, "not yet");
        (prepared.apply)();
        assert_eq!(queue.settings().policy, Policy::Fifo);
        assert_eq!(ControlLayer::options(&io), "io_scheduler=fifo,noboost");
        assert!(ControlLayer::prepare(&io, "boost,queue_depth=0").is_err());
        assert_eq!(ControlLayer::options(&io), "io_scheduler=fifo,noboost");
        io.write("io/scheduler", b"cfq\n").unwrap();
        assert_eq!(io.read("io/scheduler").unwrap(), b"fifo fair [cfq]\n");
        assert!(io.write("io/scheduler", b"bfq").is_err());
        assert!(io.write("io/queue", b"").is_err());
    }

    #[test]
    fn a_library_names_the_account() {
        let device = Arc::new(MemDevice::new(1 << 20));
        let queue = Arc::new(Queue::new(device, QueueOptions::default()));
        let mut options = IoOptions::default();
        options.group_weights.insert("/lib".to_owned(), 20);
        let io = Io::new(queue, options);
        let caller = Caller {
            group: "/lib/inner".to_owned(),
            prio: IoPrio::best_effort(2),
        };
        let tag = io.tag(&caller);
        assert_eq!((tag.prio, tag.group), (caller.prio, GroupId(2)));
        assert_eq!(io.tag(&Caller::default()).group, GroupId(0));
        let queue = String::from_utf8(io.read("io/queue").unwrap()).unwrap();
        assert!(queue.contains("fsync target auto, no fsync yet"), "{queue}");
        assert!(queue.contains("group 1 is /lib, weight 20"), "{queue}");
        assert!(queue.contains("group 2 weight 100: 0 queued"), "{queue}");
    }
}
