//! The default size of the caches.

use std::path::Path;

use crate::MIN_CACHE_SIZE;

/// The caches get one part in this many of the memory.
const MEMORY_SHARE: u64 = 16;
/// Largest default. A larger cache is slower: reused memory is warm, and fresh memory costs a page fault per 4 KiB (with
/// 1 GiB, streaming writes and new small files ran at two thirds of the speed).
const CACHE_BYTES_MAX: u64 = 256 << 20;

/// Largest default for a command. It writes each byte once, so a larger cache only delays the write-back to the end of the
/// command, and its memory is cleared by the kernel first (20 000 files copied with 256 MiB: a fifth of the time).
const COMMAND_CACHE_BYTES_MAX: u64 = 64 << 20;

/// An overlay in memory gets at most one part in this many of the memory.
const OVERLAY_SHARE: u64 = 4;

/// A quarter of the memory that this process may use.
pub(crate) fn overlay_memory() -> u64 {
    let (host, group) = limits();
    there(host, group) / OVERLAY_SHARE
}

/// A sixteenth of the memory that this process may use, between 32 and 256 MiB.
pub(crate) fn default_cache_size() -> u64 {
    let (host, group) = limits();
    share_of(host, group)
}

/// The same for a command, which uses the volume briefly: at most 64 MiB.
pub(crate) fn command_cache_size() -> u64 {
    default_cache_size().min(COMMAND_CACHE_BYTES_MAX)
}

/// The memory of the host, and the limit of this process's cgroups.
fn limits() -> (Option<u64>, Option<u64>) {
    let host = std::fs::read_to_string("/proc/meminfo").ok();
    let host = host.as_deref().and_then(mem_total);
    let group = std::fs::read_to_string("/proc/self/cgroup").ok();
    let group = group.as_deref().and_then(group_limit);
    (host, group)
}

fn there(host: Option<u64>, group: Option<u64>) -> u64 {
    const UNKNOWN: u64 = 4 << 30;
    host.unwrap_or(UNKNOWN).min(group.unwrap_or(u64::MAX))
}

fn share_of(host: Option<u64>, group: Option<u64>) -> u64 {
    (there(host, group) / MEMORY_SHARE).clamp(4 * MIN_CACHE_SIZE, CACHE_BYTES_MAX)
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The tightest limit of the process's cgroups (`/proc/self/cgroup`), in bytes.
fn group_limit(groups: &str) -> Option<u64> {
    let mut tightest = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next(), fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        // In a container the path is that of the host, but the root is that of the container.
        for folder in Path::new(path.trim_start_matches('/')).ancestors() {
            let limit = std::fs::read_to_string(Path::new(root).join(folder).join(file));
            let limit = limit.ok().and_then(|text| text.trim().parse().ok());
            tightest = match (tightest, limit) {
                (Some(a), Some(b)) => Some(std::cmp::min::<u64>(a, b)),
                (a, b) => a.or(b),
            };
        }
    }
    tightest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_cache_size_has_bounds() {
        assert_eq!(share_of(Some(2 << 30), None), 128 << 20);
        assert_eq!(share_of(Some(64 << 30), None), 256 << 20);
        assert_eq!(share_of(Some(8 << 30), Some(1 << 30)), 64 << 20);
        assert_eq!(share_of(Some(64 << 20), None), 32 << 20);
        assert_eq!(share_of(None, None), 256 << 20);
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemFree: 1 kB\nMemTotal:       24621112 kB\n";
        assert_eq!(mem_total(text), Some(24_621_112 << 10));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
        assert!(mem_total(&std::fs::read_to_string("/proc/meminfo").unwrap()).is_some());
    }
}
