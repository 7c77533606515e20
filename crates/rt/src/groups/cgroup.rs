//! The host's cgroups: the group of a process, and the weight of a group.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A mounted hierarchy with an I/O controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    mount: PathBuf,
    /// The group that is mounted; `/` for the root.
    root: String,
    /// Version 1, with the controller blkio.
    v1: bool,
}

/// A group's weight as read from its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// This weight.
    Is(u32),
    /// The group has no weight file: the I/O controller is not enabled there.
    Default,
    /// The group does not exist.
    Gone,
}

const V1_FILES: [&str; 2] = ["blkio.bfq.weight", "blkio.weight"];
const V2_FILES: [&str; 2] = ["io.bfq.weight", "io.weight"];

impl Hierarchy {
    /// The hierarchy that is mounted here: blkio of version 1, else version 2.
    pub fn find() -> Option<Self> {
        Self::among(&fs::read_to_string("/proc/self/mountinfo").ok()?)
    }

    /// Version 2, mounted on a folder.
    #[cfg(test)]
    pub fn at(mount: &Path) -> Self {
        Self {
            mount: mount.to_owned(),
            root: "/".to_owned(),
            v1: false,
        }
    }

    fn among(mountinfo: &str) -> Option<Self> {
        let found: Vec<Self> = mountinfo.lines().filter_map(Self::mounted).collect();
        let v1 = found.iter().find(|hierarchy| hierarchy.v1);
        v1.or(found.first()).cloned()
    }

    /// One line of mountinfo, proc(5): …, root, mount point, options, tags, `-`, type, source, options.
    fn mounted(line: &str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, at) = (mount.next()?, mount.next()?);
        let mut kind = kind.split(' ');
        let v1 = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => false,
            ("cgroup", options) if options.split(',').any(|o| o == "blkio") => true,
            _ => return None,
        };
        Some(Self {
            mount: unescape(at).into(),
            root: unescape(root),
            v1,
        })
    }

    /// The group of a process, a path below the hierarchy's root; `None` if the process has exited.
    pub fn group_of(&self, pid: u32) -> Option<String> {
        self.line_of(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
    }

    /// Parses the lines `NUMBER:CONTROLLERS:PATH`.
    fn line_of(&self, text: &str) -> Option<String> {
        let path = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let right = match self.v1 {
                true => controllers.split(',').any(|c| c == "blkio"),
                false => number == "0" && controllers.is_empty(),
            };
            right.then_some(path)
        })?;
        let below = match self.root.as_str() {
            "/" => path,
            root => path.strip_prefix(root)?,
        };
        // A group outside of the mounted part, or a removed one, counts as the root.
        let known = !below.starts_with("/..") && !below.ends_with(" (deleted)");
        Some(if known {
            below.to_owned()
        } else {
            "/".to_owned()
        })
    }

    /// The weight of a group, a path below the hierarchy's root.
    pub fn weight(&self, group: &str) -> Weight {
        let folder = self.mount.join(group.trim_start_matches('/'));
        let files = if self.v1 { V1_FILES } else { V2_FILES };
        for name in files {
            match fs::read_to_string(folder.join(name)) {
                Ok(text) => return parse_weight(&text).map_or(Weight::Default, Weight::Is),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(_) => return Weight::Default,
            }
        }
        match Path::exists(&folder) {
            true => Weight::Default,
            false => Weight::Gone,
        }
    }
}

/// `N`, or `default N` among lines for single devices.
fn parse_weight(text: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let number = line.strip_prefix("default ").unwrap_or(line);
        number.trim().parse::<u32>().ok()
    })
}

/// Mountinfo has spaces and the like as `\040`.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|c| u8::from_str_radix(c, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TMP: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n";
    const V1: &str = "38 31 0:35 / /sys/fs/cgroup/b\\040io rw shared:9 - cgroup cgroup rw,blkio\n";
    const V1_OTHER: &str = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
    const V2: &str = "41 31 0:38 /pod /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_hierarchy_with_an_io_controller_is_found() {
        let v1 = Hierarchy {
            mount: "/sys/fs/cgroup/b io".into(),
            root: "/".to_owned(),
            v1: true,
        };
        let v2 = Hierarchy {
            mount: "/sys/fs/cgroup".into(),
            root: "/pod".to_owned(),
            v1: false,
        };
        let among = |lines: &[&str]| Hierarchy::among(&lines.concat());
        assert_eq!(among(&[TMP, V1_OTHER, V2, V1]), Some(v1.clone()));
        assert_eq!(among(&[TMP, V1_OTHER, V2]), Some(v2.clone()));
        assert_eq!(among(&[TMP, V1_OTHER]), None);
        let lines = "9:name=systemd:/x\n7:cpu,blkio:/a/b:c\n0::/pod/inner\n";
        assert_eq!(v1.line_of(lines), Some("/a/b:c".to_owned()));
        assert_eq!(v2.line_of(lines), Some("/inner".to_owned()));
        assert_eq!(v2.line_of("0::/elsewhere\n"), None);
        assert_eq!(v1.line_of("7:blkio:/../up\n"), Some("/".to_owned()));
        assert_eq!(
            v1.line_of("7:blkio:/gone (deleted)\n"),
            Some("/".to_owned())
        );
    }

    #[test]
    fn a_weight_is_a_number_or_a_default() {
        assert_eq!(parse_weight("100\n"), Some(100));
        assert_eq!(parse_weight("default 250\n8:0 10\n"), Some(250));
        assert_eq!(parse_weight("8:0 10\n"), None);
    }

    #[test]
    fn weight_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().join("a");
        fs::create_dir(&group).unwrap();
        let hierarchy = Hierarchy::at(folder.path());
        assert_eq!(hierarchy.weight("/a"), Weight::Default);
        fs::write(group.join("io.weight"), "default 300\n").unwrap();
        assert_eq!(hierarchy.weight("/a"), Weight::Is(300));
        fs::write(group.join("io.bfq.weight"), "20\n").unwrap();
        assert_eq!(hierarchy.weight("/a"), Weight::Is(20));
        assert_eq!(hierarchy.weight("/b"), Weight::Gone);
    }
}
