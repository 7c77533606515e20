//! Option lists of a remount: options of the volume, flags that the kernel enforces, and options fixed at mount time.

use steadfs_vfs::options::{Entry, cannot_change, item, items};
use steadfs_vfs::{FsError, Result};

use super::table::TABLE;
use super::{MountFlags, Options, is_for_others};
use crate::probe::Kind;

/// Whether a running mount cannot change the option.
fn is_fixed(name: &str) -> bool {
    TABLE.find(name).is_some_and(Entry::is_fixed)
}

impl Options {
    /// Refuses items that are invalid for every mount; the error also lists those invalid for this kind of volume. The
    /// running mount, which knows the current options, checks the rest.
    ///
    /// # Errors
    /// As [`Options::parse`], without contradictions between options.
    pub fn check_items(list: &str, kind: Option<Kind>) -> Result<()> {
        let (options, mut refused) = Self::take(list);
        if !refused.is_empty()
            && let Some(kind) = kind
        {
            refused.extend(options.misfits.of(kind));
        }
        refused.into_result()
    }

    /// Splits a list into the items that a remount can change, and those that are fixed at mount time.
    pub fn split_fixed(list: &str) -> (String, Vec<String>) {
        let (mut rest, mut fixed) = (Vec::new(), Vec::new());
        for (name, value) in items(list) {
            let item = item(name, value);
            if is_fixed(name) {
                fixed.push(item);
            } else {
                rest.push(item);
            }
        }
        (rest.join(","), fixed)
    }

    /// The flags that the kernel enforces after `list` is applied to the current ones.
    pub fn flags_over(now: MountFlags, list: &str) -> MountFlags {
        let mut options = Self {
            flags: now,
            ..Self::default()
        };
        for (name, value) in items(list) {
            // Errors were reported before.
            let _ = options.set(name, value);
        }
        options.flags
    }

    /// The fixed options that differ from the defaults, as a list.
    pub(crate) fn show_fixed(&self) -> String {
        TABLE.show(self)
    }

    /// Returns the items of a remount's list for the volume. Taken out are the flags that the kernel enforces, items for
    /// other programs, and fixed options that do not change.
    ///
    /// # Errors
    /// [`FsError::BadOption`](steadfs_vfs::FsError::BadOption) naming all items that are invalid for this kind of volume,
    /// and all fixed ones that would change.
    pub(crate) fn for_volume(&self, list: &str, kind: Kind) -> Result<String> {
        let (checked, mut refused) = Self::take(list);
        refused.extend(checked.misfits.of(kind));
        let mut rest = Vec::new();
        for (name, value) in items(list) {
            let item = item(name, value);
            if is_fixed(name) {
                let mut changed = self.clone();
                if changed.set(name, value).is_ok()
                    && !TABLE.fixed_changes(self, &changed).is_empty()
                {
                    refused.push(cannot_change(&item));
                }
            } else if self.fakeroot.is_some() && ["suid", "dev", "defaults"].contains(&name) {
                let why = "fakeroot implies nosuid,nodev";
                refused.push(FsError::BadOption(format!("option {item}: {why}")));
            } else if self.takeover
                && name == "checkpoint"
                && value.is_some_and(|value| value.starts_with("disable"))
            {
                let why = "with takeover=on everything must become durable";
                refused.push(FsError::BadOption(format!("option {item}: {why}")));
            } else if TABLE.find(name).is_none() && is_for_others(name) != Ok(true) {
                rest.push(item);
            }
        }
        refused.into_result().map(|()| rest.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn good(list: &str) -> Options {
        Options::parse(list).unwrap_or_else(|error| panic!("{list}: {error}"))
    }

    #[test]
    fn lists_for_running_mounts() {
        let list = "rw,nofail,x-a=b,noexec,offset=1M,commit=9,buffered,control,slice_idle=0";
        let fixed = ["offset=1M", "buffered", "control"]
            .map(String::from)
            .to_vec();
        let rest = "rw,nofail,x-a=b,noexec,commit=9,slice_idle=0".to_owned();
        assert_eq!(Options::split_fixed(list), (rest, fixed));
        let mounted = good("offset=1M,buffered,noexec");
        let rest = mounted.for_volume(list, Kind::Ext4);
        assert_eq!(rest.as_deref(), Ok("rw,commit=9,slice_idle=0"));
        assert_eq!(
            Options::check_items("noload,gc_merge,lazytime", None),
            Ok(())
        );
        let said = Options::check_items("nofial,gc_merge", Some(Kind::Ext4)).unwrap_err();
        assert!(
            said.to_string().ends_with("option gc_merge: ext4 has none"),
            "{said}"
        );
        let flags = Options::flags_over(mounted.flags, "rw,nosuid,exec");
        assert!(flags.nosuid && !flags.noexec);
    }

    #[test]
    fn all_that_a_running_mount_refuses_is_one_error() {
        let mounted = good("offset=1M");
        let said = mounted.for_volume("offset=2M,nofial,atgc,foreground,commit=9", Kind::Ext2);
        let said = said.unwrap_err().to_string();
        let items: Vec<_> = said
            .split("; option ")
            .map(|item| item.split(':').next())
            .collect();
        let wanted = ["option nofial", "atgc", "offset=2M", "foreground"];
        assert_eq!(items, wanted.map(Some), "{said}");
    }

    #[test]
    fn what_is_fixed_is_shown_as_it_is_taken() {
        for (list, shown) in [
            (
                "ro,noatime,control,direct,io_engine=auto,sizelimit=0,offset=0",
                "sandbox=on",
            ),
            (
                "offset=1M,sizelimit=2M,sandbox=off",
                "offset=1048576,sizelimit=2097152,sandbox=off",
            ),
            (
                "buffered,io_engine=threads,cache_size=64M",
                "cache_size=67108864,io_engine=threads,buffered,sandbox=on",
            ),
            (
                "fuse_transport=dev,device_model=20M:5",
                "device_model=20971520:5:1:0,fuse_transport=dev,sandbox=on",
            ),
        ] {
            let options = good(list);
            assert_eq!(options.show_fixed(), shown);
            assert_eq!(good(shown).show_fixed(), shown);
            let again = format!("rw,{shown},commit=9");
            assert_eq!(
                options.for_volume(&again, Kind::Ext4).as_deref(),
                Ok("rw,commit=9")
            );
            for other in [
                "offset=512",
                "sizelimit=1M",
                "io_engine=uring",
                "fuse_transport=uring",
            ] {
                let said = options
                    .for_volume(other, Kind::Ext4)
                    .unwrap_err()
                    .to_string();
                let why =
                    format!("option {other}: cannot change while mounted; unmount and mount again");
                assert_eq!(said, why);
            }
        }
        assert!(good("").for_volume("offset=x", Kind::F2fs).is_err());
    }
}
