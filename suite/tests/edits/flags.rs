//! What the commands print and ask is what coreutils print and ask.

use super::*;

/// Answers on standard input, and commands in which `@` is the root of a volume.
const COMMANDS: &[(&str, &str)] = &[
    ("", "mkdir -v @/a @/b"),
    ("", "mkdir -pv @/p/q/r @/p/q/s"),
    ("", "mkdir -v @/a @/etc"),
    ("", "cp /etc/passwd /etc/group @/etc"),
    ("", "touch @/f @/g @/h @/t1 @/t2 @/t3"),
    ("", "rmdir -v @/b @/p @/none"),
    ("", "rmdir -pv @/p/q/r"),
    ("", "rmdir -v --ignore-fail-on-non-empty @/p"),
    // Links.
    ("", "ln -v @/f @/hard"),
    ("", "ln -fv @/f @/hard"),
    ("n\\n", "ln -iv @/f @/hard"),
    ("", "ln -v @/f @/a"),
    ("", "ln -sv f @/soft"),
    ("", "ln -sfv g @/soft"),
    ("n\\n", "ln -iv @/g @/hard"),
    ("y\\n", "ln -iv @/g @/hard"),
    ("no\\n", "ln -fiv @/f @/hard"),
    ("", "ln -ifv @/f @/hard"),
    ("", "ln -srv @/f @/g @/p/q"),
    ("", "ln -srv @/none @/p/none"),
    ("", "ln -srv @/p @/p/self"),
    ("", "ln -s p/q @/way"),
    ("", "ln -srTv @/soft @/way/soft"),
    ("", "ln -srv @/f/x @/p/../way/./x"),
    ("", "ln -s lost/away @/gone"),
    ("", "ln -srv @/gone/file @/a/file"),
    ("", "ln -r @/f @/no"),
    // Names.
    ("", "mv -v @/h @/a"),
    ("", "mv -v @/a/h @/a/f @/p/"),
    ("n\\n", "mv -iv @/t1 @/t2"),
    ("", "mv -iv @/t1 @/t2"),
    ("", "mv -inv @/t1 @/t2"),
    ("Y\\n", "mv -niv @/t1 @/t2"),
    ("", "mv -ifv @/t2 @/t3"),
    ("", "mv -iv @/t3 @/t4"),
    // Attributes.
    ("", "chmod -v 600 @/g @/etc"),
    ("", "chmod -v 600 @/g"),
    ("", "chmod -c 600 @/g @/a"),
    ("", "chmod -vc 600 @/g"),
    ("", "chmod -cv 600 @/g"),
    ("", "chmod -c 4711 @/g"),
    ("", "chmod -Rv g+w @/p"),
    ("", "chmod -v --reference=@/g @/f @/a"),
    ("", "chmod -v --reference=/etc/passwd @/f"),
    ("", "chmod --reference=@/none @/f"),
    ("", "chmod 888 @/f"),
    ("", "chown -v 7:8 @/g"),
    ("", "chown -v 7:8 @/g"),
    ("", "chown -v 9 @/g"),
    ("", "chown -v :4005 @/g"),
    ("", "chown -c 9 @/g"),
    ("", "chown -v root: @/g"),
    ("", "chown -v : @/g"),
    ("", "chown -v daemon:4006 @/f"),
    ("", "chown -v --reference=@/f @/g"),
    ("", "chown -v --reference=/etc/passwd @/g"),
    ("", "chown -hv 3:4 @/soft"),
    ("", "chown -Rc 4001 @/p"),
    ("", "truncate -s 1234 @/sized"),
    ("", "truncate -r @/sized @/f @/new"),
    ("", "truncate -r @/sized -s +5 @/new2"),
    ("", "truncate -r /etc/passwd -s '<50' @/new3"),
    ("", "truncate -r @/sized -s 5 @/f"),
    ("", "truncate -r @/none @/f"),
    // Copies.
    ("n\\n", "cp -iv @/sized @/new"),
    ("y\\n", "cp -iv @/sized @/new2"),
    ("y\\n", "cp -niv @/new3 @/new"),
    ("", "cp -inv @/sized @/new3"),
    ("", "cp -fiv @/f @/new3"),
    // Removals.
    ("y\\nn\\n", "rm -iv @/f @/sized"),
    ("y\\ny\\n", "rm -iv @/t4 @/soft"),
    (" y\\n", "rm -Iv @/new @/new2 @/new3 @/sized"),
    ("", "rm -Iv @/new"),
    ("y\\n", "rm -iIv @/new2"),
    ("n\\n", "rm -fiv @/new3"),
    ("", "rm -ifv @/new3 @/none"),
    ("yes\\n", "rm -rIv @/etc"),
    ("n\\n", "rm --interactive=once -rv @/p"),
    ("n\\n", "rm --interactive -v @/sized"),
    ("", "rm -i --interactive=never -v @/sized"),
    ("n\\n", "rm -ri @/p"),
    ("", "mkdir -p @/c/d/e @/b"),
    ("", "touch @/c/d/e/f"),
    ("y\\ny\\ny\\nn\\n", "rm -riv @/c"),
    ("y\\n", "rm -div @/b"),
    ("y\\ny\\ny\\n", "rm -riv @/a"),
    ("", "rm -rv @/p"),
];

/// Whether a command ended well, what it printed, and what it asked.
fn outcome(
    (answers, line): (&str, &str),
    root: &str,
    ours: bool,
) -> (bool, Vec<String>, Vec<String>) {
    let run = if ours { "$S " } else { "" };
    let line = line.replace('@', root);
    let mut shell = Command::new("bash");
    let line = format!("umask 027; printf '{answers}' | {run}{line}");
    shell.args(["-c", &line]);
    shell.env("S", program()).env("LC_ALL", "C");
    let output = finish(shell, PATIENCE);
    // The order of entries in a directory is the volume's. The lines of cp have no image in them.
    let sorted = |parts: std::str::Split<'_, &str>| {
        let mut parts: Vec<String> = parts.map(|part| part.replace(root, "")).collect();
        parts.sort();
        parts
    };
    let done = output.code() == 0;
    let asked = match done {
        true => sorted(output.err.split("? ")),
        false => Vec::new(),
    };
    (done, sorted(output.out.split("\n")), asked)
}

#[test]
fn commands_print_and_ask_what_coreutils_do() {
    let scratch = Scratch::new();
    let judged = image(&scratch, "judged.img", "ext4", 16 * MIB);
    let mount = KernelMount::new(&scratch, judged.path(), "rw,noatime");
    let theirs = mount.root().to_str().unwrap().to_owned();
    let volume = image(&scratch, "ours.img", "ext4", 16 * MIB);
    let ours = format!("{}:", volume.path().display());
    let mut lines = 0;
    for command in COMMANDS {
        let wanted = outcome(*command, &theirs, false);
        assert_eq!(outcome(*command, &ours, true), wanted, "{command:?}");
        lines += wanted.1.len() + wanted.2.len();
    }
    assert!(lines > 2 * COMMANDS.len(), "{lines} lines");
    check(&volume, "ext4");
    let out = scratch.join("out");
    steadfs(["extract", &ours, out.to_str().unwrap()]).expect(0);
    let tree = described(&Tree::of(mount.root()));
    assert_eq!(described(&Tree::of(&out)), tree);
    mount.unmount();
}

#[test]
fn verbose_lines_name_the_image() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 8 * MIB);
    let path = volume.path().to_str().unwrap();
    let made = steadfs(["mkdir", "-v", &format!("{path}:/x")])
        .expect(0)
        .out;
    assert_eq!(made, format!("mkdir: created directory '{path}:/x'\n"));
    refused(
        &["cp", "-i", "-", &format!("{path}:/x/y")],
        "-i reads answers from standard input",
    );
}

#[test]
fn scripts_print_changes_and_ask_nothing() {
    let scratch = Scratch::new();
    let volume = image(&scratch, "a.img", "ext4", 8 * MIB);
    let path = volume.path().to_str().unwrap();
    let name = script::script(
        &scratch,
        "mkdir -v /d\nmv -v /d /e\nchmod -v 700 /e\nchown -c 1:2 /e\nln -srv /e /e/l\ntruncate -s 7 /f\n\
         truncate -r /f /g\nchmod --reference=/e /f\nchown --reference=/e /f\nrm -rv /e",
    );
    let printed = steadfs(["edit", path, &name]).expect(0).out;
    let wanted = "mkdir: created directory '/d'\n\
        renamed '/d' -> '/e'\n\
        mode of '/e' changed from 0755 (rwxr-xr-x) to 0700 (rwx------)\n\
        changed ownership of '/e' from 0:0 to 1:2\n\
        '/e/l' -> '.'\n\
        removed '/e/l'\n\
        removed directory '/e'\n";
    assert_eq!(printed, wanted);
    let listed = steadfs(["ls", "-l", &format!("{path}:/")]).expect(0).out;
    let words = |line: &str| {
        line.split_whitespace()
            .take(5)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let lines: Vec<String> = listed.lines().map(words).collect();
    for wanted in ["-rwx------ 1 1 2 7", "-rw-r--r-- 1 0 0 7"] {
        assert!(lines.iter().any(|line| line == wanted), "{listed}");
    }
    for line in [
        "rm -i /f",
        "rm -rI /f",
        "mv -i /f /g",
        "ln -i /f /g",
        "put -i /etc/passwd /f",
    ] {
        let name = script::script(&scratch, line);
        refused(
            &["edit", path, &name],
            ":1: -i and -I: a script has no answers",
        );
    }
    volume.check_clean();
}
