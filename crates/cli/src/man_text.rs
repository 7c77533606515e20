//! What the manual's pages have in addition to the help: examples, exit codes, and pages to read next.

#[path = "man_text/codes.rs"]
mod codes;

use codes::{CHECKING, MOUNTING, PLAIN, UNMOUNTING};

/// Exit codes and their meanings.
pub type Codes = &'static [(&'static str, &'static str)];

/// The additions to the page of a command.
pub struct Page {
    /// The command.
    pub command: &'static str,
    /// Lines for a shell, and what they do.
    pub examples: &'static [(&'static str, &'static str)],
    /// Its exit codes.
    pub codes: Codes,
    /// Pages of other programs.
    pub see_also: &'static str,
}

/// The page of a command of a command.
pub struct Part {
    /// The command that it belongs to.
    pub of: &'static str,
    /// Its page.
    pub page: Page,
}

/// A page that no command's help is the beginning of.
pub struct Helper {
    /// The section NAME.
    pub name: &'static str,
    pub synopsis: &'static str,
    /// Paragraphs.
    pub description: &'static [&'static str],
    pub options: &'static [(&'static str, &'static str)],
    pub page: Page,
}

/// How sizes are written, for the page of the program: the place where that is documented.
pub const SIZES: &str = "A size is a number and perhaps a unit: B (bytes), s (sectors of 512 bytes), K, M, G, T, P, E or KiB, MiB, \
    GiB, TiB, PiB, EiB (powers of 1024), and KB, MB, GB, TB, PB, EB (powers of 1000, as in coreutils); letters are of either \
    case. A number without a unit counts bytes, where its command or option does not say otherwise: blocks, sectors or KiB for \
    the size of a new volume, MiB in format -J size=, KiB in quota --limits, blocks in resize. 0x begins a hexadecimal number. Fractions need a \
    unit and are rounded down to whole bytes, as in 0.5G. Sizes that are empty, negative, or larger than 64 bits are refused, as \
    are those with a leading 0, which mke2fs reads as octal.";

/// The program itself.
pub const PROGRAM: Page = Page {
    command: "steadfs",
    examples: &[
        ("steadfs format disk.img 1G", "An ext4 volume in a file."),
        (
            "steadfs cp -r /etc/default disk.img:/",
            "A directory into it, without mounting it.",
        ),
        (
            "steadfs mount disk.img /mnt",
            "Mounted; steadfs umount /mnt ends that.",
        ),
    ],
    codes: PLAIN,
    see_also: "ext4(5), mount(8), e2fsck(8), fsck.f2fs(8)",
};

/// `format -t f2fs`.
pub const F2FS: Page = Page {
    command: "format",
    examples: &[
        (
            "steadfs format -t f2fs -l data /dev/sdb1",
            "A volume with a label on a partition.",
        ),
        (
            "steadfs format -t f2fs -O extra_attr,compression -d rootfs data.img 2G",
            "Features as in mkfs.f2fs, and the files of a directory.",
        ),
    ],
    codes: PLAIN,
    see_also: "mkfs.f2fs(8)",
};

/// `fsck.steadfs`.
pub const FSCK: Helper = Helper {
    name: "fsck.steadfs - check a volume of fstab's type steadfs before it is mounted",
    synopsis: "fsck.steadfs [-a|-p|-y|-n] [-fvV] [-C DESCRIPTOR] DEVICE",
    description: &[
        "fsck(8) calls this program for lines of fstab whose type is steadfs or fuse.steadfs and whose last field is not 0, \
         and for fsck -t steadfs. DEVICE is a block device, an image file, a partition of one (disk.img@2), an NBD server's \
         export, or LABEL= or UUID=. The options of a line of fstab are not read: a volume that needs partition=, offset=, \
         journal_path= or device= has the pass 0.",
        "A volume that is marked as clean is believed. With -a, -p or -y, a volume that was not unmounted is recovered, as \
         each mount does it: by its journal, or on f2fs by what fsync wrote after the last checkpoint. A volume on which an \
         error is recorded, or an ext2 volume that was not unmounted, is checked, as is every volume with -f.",
        "Errors that a check finds are reported and never repaired; e2fsck(8) and fsck.f2fs(8) repair. No questions are asked. \
         A mounted volume is refused.",
    ],
    options: &[
        (
            "-a, -p, -y",
            "Recover what a mount would recover. Without these nothing is changed.",
        ),
        ("-n", "Change nothing; the journal is replayed in memory."),
        ("-f", "Check a volume that is marked as clean."),
        ("-v", "Accepted; all messages are printed in any case."),
        ("-V", "Print the version."),
        (
            "-C DESCRIPTOR",
            "Write lines of progress to this file descriptor: 1, bytes read, bytes of the volume, and its name, as e2fsck does. \
             0: show it on the terminal.",
        ),
    ],
    page: Page {
        command: "check",
        examples: &[
            ("fsck -A -t steadfs -a", "All volumes of the type in fstab."),
            (
                "fsck.steadfs -n -f disk.img",
                "A check that changes nothing.",
            ),
        ],
        codes: &[
            (
                "0",
                "no errors, or only what a mount recovers, which is recovered",
            ),
            ("4", "errors were found and left uncorrected"),
            ("8", "the volume could not be examined, or is mounted"),
            ("16", "wrong call"),
            ("32", "a signal ended it"),
        ],
        see_also: "fsck(8), fstab(5), e2fsck(8), fsck.f2fs(8)",
    },
};

/// Commands of commands.
pub const PARTS: &[Part] = &[
    Part {
        of: "key",
        page: Page {
            command: "add",
            examples: &[(
                "steadfs key add /mnt key.bin",
                "Prints the name of the key.",
            )],
            codes: PLAIN,
            see_also: "fscryptctl(1)",
        },
    },
    Part {
        of: "key",
        page: Page {
            command: "remove",
            examples: &[(
                "steadfs key remove /mnt 0123456789abcdef0123456789abcdef",
                "Takes away the key that key status calls that.",
            )],
            codes: PLAIN,
            see_also: "fscryptctl(1)",
        },
    },
    Part {
        of: "key",
        page: Page {
            command: "status",
            examples: &[("steadfs key status /mnt", "The keys that are there.")],
            codes: PLAIN,
            see_also: "fscryptctl(1)",
        },
    },
    Part {
        of: "key",
        page: Page {
            command: "set-policy",
            examples: &[(
                "steadfs key set-policy /mnt/secret 0123456789abcdef0123456789abcdef",
                "Encrypts what will be made in an empty directory.",
            )],
            codes: PLAIN,
            see_also: "fscryptctl(1)",
        },
    },
];

/// Every command that is documented.
pub const PAGES: &[Page] = &[
    Page {
        command: "format",
        examples: &[
            (
                "steadfs format root.img 2G -L root -d rootfs",
                "An ext4 volume with the files of a directory.",
            ),
            (
                "steadfs format -t f2fs -l data /dev/sdb1",
                "An f2fs volume on a partition.",
            ),
            (
                "steadfs format -b 4096 -O casefold,^has_journal card.img 64M",
                "Features as in mke2fs.",
            ),
        ],
        codes: PLAIN,
        see_also: "mke2fs(8), mkfs.f2fs(8)",
    },
    Page {
        command: "check",
        examples: &[
            (
                "steadfs check disk.img",
                "What e2fsck -fn or fsck.f2fs --dry-run would find.",
            ),
            (
                "steadfs check --json disk.img@2",
                "The second partition; the result as JSON.",
            ),
        ],
        codes: CHECKING,
        see_also: "fsck.steadfs(8), e2fsck(8), fsck.f2fs(8)",
    },
    Page {
        command: "inspect",
        examples: &[
            ("steadfs inspect disk.img", "Features, journal and usage."),
            (
                "steadfs inspect --partitions disk.img",
                "The partitions of a disk, and the volumes in them.",
            ),
        ],
        codes: PLAIN,
        see_also: "dumpe2fs(8), dump.f2fs(8)",
    },
    Page {
        command: "mount",
        examples: &[
            (
                "steadfs mount disk.img /mnt",
                "For reading and writing; returns when it is usable.",
            ),
            (
                "steadfs mount -o ro,partition=2 disk.img /mnt",
                "A partition, read-only.",
            ),
            (
                "steadfs mount -o overlay=changes system.img /mnt",
                "The image stays as it is; all changes go to another file.",
            ),
            ("steadfs mount -L data /mnt", "The device with this label."),
        ],
        codes: MOUNTING,
        see_also: "mount(8), fstab(5), ext4(5), fusermount3(1)",
    },
    Page {
        command: "umount",
        examples: &[
            (
                "steadfs umount /mnt",
                "Returns when all data is on the device.",
            ),
            (
                "steadfs umount --force /mnt",
                "Disconnects programs from a server that does not answer.",
            ),
        ],
        codes: UNMOUNTING,
        see_also: "umount(8), fusermount3(1)",
    },
    Page {
        command: "list",
        examples: &[
            ("steadfs list", "All mounts with use and state."),
            ("steadfs list --json", "The same for programs."),
        ],
        codes: PLAIN,
        see_also: "findmnt(8)",
    },
    Page {
        command: "top",
        examples: &[
            ("steadfs top", "All mounts, once a second."),
            (
                "steadfs top --json --interval 10 /mnt",
                "A line for a program every ten seconds.",
            ),
        ],
        codes: PLAIN,
        see_also: "iotop(8), iostat(1)",
    },
    Page {
        command: "remount",
        examples: &[
            (
                "steadfs remount -o ro /mnt",
                "Writes everything and becomes read-only.",
            ),
            (
                "steadfs remount -o rw,async_checkpoint=70 /mnt",
                "Changes an option while files are open.",
            ),
        ],
        codes: MOUNTING,
        see_also: "mount(8)",
    },
    Page {
        command: "upgrade",
        examples: &[(
            "steadfs upgrade /mnt",
            "The installed program goes on with the mount.",
        )],
        codes: PLAIN,
        see_also: "",
    },
    Page {
        command: "tune",
        examples: &[
            ("steadfs tune /mnt", "Lists all settings."),
            (
                "steadfs tune /mnt f2fs/gc_urgent=1 f2fs/max_victim_search=4096",
                "Sets two.",
            ),
        ],
        codes: PLAIN,
        see_also: "",
    },
    Page {
        command: "quota",
        examples: &[
            ("steadfs quota /mnt", "What users, groups and projects use."),
            (
                "steadfs quota /mnt -u --limits 1000 900M 1G 0 0",
                "Limits the space of a user: soft, then hard.",
            ),
        ],
        codes: PLAIN,
        see_also: "repquota(8), setquota(8)",
    },
    Page {
        command: "key",
        examples: &[
            (
                "steadfs key add /mnt key.bin",
                "Prints the name of the key.",
            ),
            ("steadfs key status /mnt", "The keys that are there."),
            (
                "steadfs cat --key-file key.bin disk.img:/secret/note",
                "Reads an encrypted file of an image.",
            ),
        ],
        codes: PLAIN,
        see_also: "fscryptctl(1), fscrypt(1)",
    },
    Page {
        command: "verity",
        examples: &[
            (
                "steadfs verity enable disk.img:/app.apk",
                "Its content never changes again.",
            ),
            (
                "steadfs verity enable --salt 0123abcd /mnt/app.apk",
                "A file of a mount, with a salt.",
            ),
            (
                "steadfs verity measure disk.img:/app.apk",
                "The digest that identifies the content.",
            ),
        ],
        codes: PLAIN,
        see_also: "fsverity(1)",
    },
    Page {
        command: "resize",
        examples: &[
            (
                "steadfs resize disk.img 8G",
                "An f2fs volume in a file of 8 GiB, which is extended.",
            ),
            (
                "steadfs resize /dev/sdb1",
                "As large as its partition, which has grown.",
            ),
        ],
        codes: PLAIN,
        see_also: "resize.f2fs(8), resize2fs(8)",
    },
    Page {
        command: "sync",
        examples: &[(
            "steadfs sync /mnt",
            "Returns when everything written before is durable.",
        )],
        codes: MOUNTING,
        see_also: "sync(1)",
    },
    Page {
        command: "ls",
        examples: &[
            ("steadfs ls -l disk.img:/etc", "A directory of an image."),
            (
                "steadfs ls super.img",
                "The logical partitions of an Android image.",
            ),
        ],
        codes: PLAIN,
        see_also: "ls(1)",
    },
    Page {
        command: "cat",
        examples: &[(
            "steadfs cat disk.img@2:/etc/os-release",
            "A file of the second partition.",
        )],
        codes: PLAIN,
        see_also: "cat(1)",
    },
    Page {
        command: "cp",
        examples: &[
            ("steadfs cp disk.img:/etc/fstab .", "Out of an image."),
            (
                "steadfs cp -a rootfs/. disk.img:/",
                "A tree into an image, with owners and attributes.",
            ),
            (
                "steadfs cp --no-privileges -r disk.img:/home found",
                "Untrusted files, as root: no set-ID bits or device nodes.",
            ),
        ],
        codes: PLAIN,
        see_also: "cp(1)",
    },
    Page {
        command: "extract",
        examples: &[(
            "steadfs extract disk.img:/var/log logs",
            "A subtree of an image to a directory.",
        )],
        codes: PLAIN,
        see_also: "debugfs(8)",
    },
    Page {
        command: "tar",
        examples: &[(
            "steadfs tar disk.img:/ > root.tar",
            "All files of an image as an archive.",
        )],
        codes: PLAIN,
        see_also: "tar(1)",
    },
    Page {
        command: "stat",
        examples: &[(
            "steadfs stat disk.img:/etc/passwd",
            "The attributes of a file.",
        )],
        codes: PLAIN,
        see_also: "stat(1)",
    },
    Page {
        command: "find",
        examples: &[
            (
                "steadfs find disk.img -name *.conf -size +1M",
                "Quote the pattern for a shell.",
            ),
            (
                "steadfs find disk.img:/home -perm /6000 -ls",
                "Files with set-ID bits.",
            ),
        ],
        codes: PLAIN,
        see_also: "find(1)",
    },
    Page {
        command: "du",
        examples: &[(
            "steadfs du -s disk.img:/var disk.img:/home",
            "The space that two trees use.",
        )],
        codes: PLAIN,
        see_also: "du(1)",
    },
    Page {
        command: "tree",
        examples: &[("steadfs tree -L 2 disk.img:/", "Two levels of an image.")],
        codes: PLAIN,
        see_also: "tree(1)",
    },
    Page {
        command: "mkdir",
        examples: &[(
            "steadfs mkdir -p disk.img:/srv/www",
            "With the directories above it.",
        )],
        codes: PLAIN,
        see_also: "mkdir(1)",
    },
    Page {
        command: "rmdir",
        examples: &[("steadfs rmdir disk.img:/tmp/empty", "An empty directory.")],
        codes: PLAIN,
        see_also: "rmdir(1)",
    },
    Page {
        command: "rm",
        examples: &[("steadfs rm -r disk.img:/var/cache", "A tree.")],
        codes: PLAIN,
        see_also: "rm(1)",
    },
    Page {
        command: "mv",
        examples: &[(
            "steadfs mv disk.img:/etc/fstab disk.img:/etc/fstab.old",
            "Renames on the volume.",
        )],
        codes: PLAIN,
        see_also: "mv(1)",
    },
    Page {
        command: "ln",
        examples: &[("steadfs ln -s usr/bin disk.img:/bin", "A symbolic link.")],
        codes: PLAIN,
        see_also: "ln(1)",
    },
    Page {
        command: "chmod",
        examples: &[(
            "steadfs chmod -R go-w disk.img:/etc",
            "Takes permissions away in a tree.",
        )],
        codes: PLAIN,
        see_also: "chmod(1)",
    },
    Page {
        command: "chown",
        examples: &[("steadfs chown -R 0:0 disk.img:/etc", "Owners are numbers.")],
        codes: PLAIN,
        see_also: "chown(1)",
    },
    Page {
        command: "touch",
        examples: &[(
            "steadfs touch -d 2026-11-28 disk.img:/etc/machine-id",
            "Makes a file, or sets its times.",
        )],
        codes: PLAIN,
        see_also: "touch(1)",
    },
    Page {
        command: "truncate",
        examples: &[(
            "steadfs truncate -s 64M disk.img:/swapfile",
            "Sets the size of a file.",
        )],
        codes: PLAIN,
        see_also: "truncate(1)",
    },
    Page {
        command: "edit",
        examples: &[
            (
                "steadfs edit disk.img changes.txt",
                "All changes of a script, or none.",
            ),
            (
                "steadfs edit -n disk.img changes.txt",
                "Tries the script and changes nothing.",
            ),
        ],
        codes: PLAIN,
        see_also: "debugfs(8)",
    },
    Page {
        command: "service",
        examples: &[(
            "systemctl enable --now steadfs.socket",
            "From now on systemd starts it for each mount.",
        )],
        codes: PLAIN,
        see_also: "systemd.socket(5)",
    },
    Page {
        command: "completions",
        examples: &[("steadfs completions bash > steadfs.bash", "For bash.")],
        codes: PLAIN,
        see_also: "",
    },
];

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::{CommandFactory, Parser};

    use super::{F2FS, PAGES, PARTS, PROGRAM};
    use crate::args::Args;

    #[test]
    fn examples_are_understood() {
        // A key is read with the arguments.
        let key = std::env::temp_dir().join(format!("steadfs-key-{}", std::process::id()));
        std::fs::write(&key, [7; 64]).expect("it can be written");
        let mut wrong = Vec::new();
        let parts = PARTS.iter().map(|part| &part.page);
        let all = PAGES.iter().chain(parts).chain([&PROGRAM, &F2FS]);
        for (line, _) in all.flat_map(|page| page.examples) {
            if *line == "systemctl enable --now steadfs.socket" {
                continue;
            }
            let words = line.split_whitespace().take_while(|word| *word != ">");
            let words = words.map(|word| match word {
                "key.bin" => key.as_os_str(),
                word => OsStr::new(word),
            });
            if let Err(error) = Args::try_parse_from(words) {
                wrong.push(format!("{line}: {error}"));
            }
        }
        std::fs::remove_file(key).expect("it is there");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn each_command_has_a_page() {
        let program = Args::command();
        let mut commands: Vec<_> = program
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let mut pages: Vec<_> = PAGES.iter().map(|page| page.command).collect();
        // steadfs-lab writes its own.
        commands.retain(|command| *command != "lab");
        commands.sort_unstable();
        pages.sort_unstable();
        assert_eq!(commands, pages);
    }
}
