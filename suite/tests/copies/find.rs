//! `find` and `du`: GNU find and du on a kernel mount of the same volume decide.

use super::*;

/// The tree, made below the current directory. Its times are neither near a whole number of days nor of minutes.
const TREE: &str = r#"
mkdir -p a/b/c 'sp ace' .hid empty etc many
cp /etc/passwd /etc/group etc/
echo hi >a/f1; head -c 5000 /dev/zero >a/f5000; truncate -s 3M a/b/sparse; head -c 120000 /dev/urandom >a/b/big.bin
touch a/b/c/none .hid/x 'sp ace/two  words'
ln a/f1 a/b/hard; ln a/f1 many/hard2
ln -s f1 a/l1; ln -s nowhere a/broken; ln -s b a/dirlink
mkfifo a/fifo; mknod a/chr c 5 300; mknod a/blk b 8 70000
for i in $(seq 1 30); do
    head -c $((i * 97)) /dev/zero >many/File.$i
    touch -d "@$((1700000000 + i * 86400 * 25)).$i" many/File.$i
done
chmod 4755 a/f1; chmod 2770 a/b; chmod 1777 empty; chmod 000 many/File.3; chmod 640 many/File.4
chown 1000:33 many/File.5; chown 4242:4343 many/File.6; chown -h 1:2 a/l1
touch -d 1965-02-03T04:05:06 many/File.7; touch -a -d 2001-01-01 many/File.8; touch -d 2040-05-06 many/File.9
printf x >$'many/nl\nx'; printf x >$'many/\xff\xfe'; printf x >many/ä
"#;

/// Expressions; together they use all tests, actions and operators, and each way to be wrong.
const EXPRESSIONS: &[&str] = &[
    "",
    "-name 'f*' -o -iname 'FILE.1?'",
    "-iname Ä -o -name '[[:upper:]]*' -o -name '.*'",
    r"-name '*.[1-3][0-9]' -o -name '*\.1' -o -name '[^a-z]*5*' -o -name '[a'",
    "-path '*/b/*' -o -ipath '*/MANY/file.[1-3]' -o -wholename '*[/]c'",
    "-type d",
    "-type f,l -o -type p",
    "-type c,b",
    "-xtype l -o -xtype d -o -xtype p",
    "-size +1 -size -3 -o -size 3M -o -size 2w",
    "-size -2k -o -size +100000c -o -size 1G",
    "-size -1M",
    "-perm 644 -o -perm /a+t -o -perm 0",
    "-perm -111 -perm /222 -perm /000",
    "-perm -u+s -o -perm u=rw,g=r -o -perm -g+s,u+rwx",
    "-user root -group root -gid -5",
    "-uid +999 -o -gid 33 -o -user 1 -o -group 2",
    "-nouser -o -nogroup",
    "-links 3 -o -links +1 -type f -o -inum 12",
    "-mtime +300 -o -mtime -30 -o -atime +5000",
    "-mmin -60 -o -cmin +60 -o -amin +1000",
    "-newermt 2025-01-01 ! -newerat '2030-01-02 03:04:05 UTC'",
    "-newer ROOT/many/File.8 -o -anewer /etc/passwd -o ! -cnewer /dev/null",
    "-newerma ROOT/many/File.7 -type f",
    "-maxdepth 1",
    "-mindepth 2 -maxdepth 2 -o -false",
    "-maxdepth 0 -o -true",
    "-empty",
    "-lname 'f*' -o -ilname 'NO*'",
    "-name b -prune -o -print",
    "-depth -name b -prune -o -type f",
    "-type d , -name 'a*' -print",
    r"\( -name 'a*' -o -name 'f*' \) ! -type d -not -size 0",
    "! ! -type l -or -xdev -name 'b*' -and -type d",
    "-print0 -type f -print0",
    "-print -print",
    "-quit",
    r"-printf '%p %s %b %k %m %M %n %i %U %G %u %g %d %y %Y [%l]\n'",
    r"-mindepth 1 -printf '%P|%H|%h|%f\n'",
    r"-printf '[%10s][%-10s][%010s][%05d][%#m][%#08m]\n'",
    r"-printf '%T@ %A@ %P\n' -printf '%t|%a|%P\n'",
    r"-printf '%T+ %TY-%Tm-%Td %TH:%TM:%TS %TT %TF %P\n'",
    r"-printf '%Ta %TA %Tb %TB %Th %TD %Te %Tj %Tk %Tl %TI %Tp %Tu %Tw %Ty %TZ %P\n'",
    r"-printf 'a\tb\101\\%%\n' -printf '%P\cx\n'",
    "-path '*many*' -name '[!F]*' -prune -o -name 'F*' -ls",
    "-size +x",
    "-type q",
    "-name",
    "-newer ROOT/none",
    r"\(",
    r"-name a \)",
    r"\( \)",
    "-o -name a",
    "-name a -o",
    "!",
    "-foo",
    "-perm 9",
    "-perm +222",
    "-user nosuchuser",
    "-maxdepth x",
    "-newermt noday",
    "-prune -delete",
];

/// Other starting points, with an expression.
const STARTS: &[&str] = &[
    "ROOT/a ROOT/many/ -name '*1*'",
    "ROOT/a/dirlink ROOT/a/dirlink/ ROOT/a/l1",
    "ROOT/none ROOT/a/f1",
    "ROOT/a/b ROOT/a/b/c -depth -printf '%p %f %h %P %H %d\\n'",
];

const USAGES: &[&str] = &[
    "",
    "-a",
    "-s",
    "-ah",
    "-b",
    "-ab",
    "-a --apparent-size",
    "-ad1",
    "-d 0",
    "-ac",
    "-am",
    "-al",
    "-a0",
    "-aS",
    "-Sd1",
    "-a --block-size=1",
    "-aBK",
    "-B 4096",
    "-aB 1KB",
    "-a --si",
    "-bh",
    "-hb",
    "-bm",
    "-kh",
    "-hk",
    "-cS",
    "-acl",
    "-sc",
    "-s -a",
    "-s -d 1",
    "-B 0",
    "-B x",
    "-d x",
];

/// A random expression, from a seed.
fn random_expression(pick: &mut dyn FnMut(usize) -> usize, depth: usize) -> String {
    const TESTS: [&str; 16] = [
        "-name 'f*'",
        "-iname 'FILE.1?'",
        "-path '*/b/*'",
        "-type d",
        "-type f,l",
        "-xtype d",
        "-size +1",
        "-size -2k",
        "-perm -111",
        "-perm /222",
        "-uid +999",
        "-links +1",
        "-mtime +300",
        "-empty",
        "-name b -prune",
        "-true",
    ];
    if depth == 0 || pick(3) == 0 {
        return TESTS[pick(TESTS.len())].to_owned();
    }
    let (a, b) = (
        random_expression(pick, depth - 1),
        random_expression(pick, depth - 1),
    );
    match pick(5) {
        0 => format!("{a} {b}"),
        1 => format!("{a} -a {b}"),
        2 => format!("{a} -o {b}"),
        3 => format!(r"\( {a} -o {b} \)"),
        _ => format!(r"! \( {a} {b} \)"),
    }
}

/// What the judges and ours are asked; `ROOT` is the root of the volume.
fn questions() -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(
        EXPRESSIONS
            .iter()
            .map(|words| format!("find ROOT/ {words}")),
    );
    lines.extend(STARTS.iter().map(|words| format!("find {words}")));
    let mut seed: u64 = 31;
    let mut pick = |most: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % most
    };
    for number in 0..16 {
        let options = ["", "-depth ", "-maxdepth 2 "][number % 3];
        lines.push(format!(
            "find ROOT/ {options}{}",
            random_expression(&mut pick, 4)
        ));
    }
    for (number, options) in USAGES.iter().enumerate() {
        let places = ["ROOT/", "ROOT/a/b ROOT/a ROOT/many ROOT/a ROOT/none"][number % 2];
        lines.push(format!("du {options} {places}"));
    }
    lines
}

/// The lines that a command prints, sorted, with `ROOT` for `root`, and whether it succeeds.
fn answer(line: &str, root: &str, ours: bool) -> (Vec<String>, bool) {
    let command = line.replace("ROOT", root);
    let command = if ours {
        format!("$S {command}")
    } else {
        command
    };
    let mut shell = Command::new("bash");
    shell.args(["-c", &command]);
    shell
        .env("S", program())
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8");
    let output = finish(shell, PATIENCE);
    let ends_in_nul = line.contains("-print0") || line.contains("-a0");
    let end = if ends_in_nul { '\0' } else { '\n' };
    // The widths of -ls follow what was printed before.
    let squeezed = |line: &str| match command.contains(" -ls") {
        true => line.split_whitespace().collect::<Vec<_>>().join(" "),
        false => line.to_owned(),
    };
    let text = output.out.replace(root, "ROOT");
    let mut lines: Vec<String> = text.split(end).map(squeezed).collect();
    lines.sort_unstable();
    (lines, output.code() == 0)
}

fn filled(scratch: &Scratch, kind: &str) -> (PathBuf, PathBuf) {
    filled_by(scratch, kind, TREE)
}

#[test]
fn find_and_du_answer_as_those_of_gnu() {
    let scratch = Scratch::new();
    let (_, volume) = filled(&scratch, "ext4");
    let questions = questions();
    let mount = KernelMount::new(&scratch, volume.as_path(), "ro");
    let root = mount.root().to_str().unwrap().to_owned();
    let wanted: Vec<_> = questions
        .iter()
        .map(|line| answer(line, &root, false))
        .collect();
    mount.unmount();
    let root = format!("{}:", volume.display());
    let mut printed = 0;
    for (line, wanted) in questions.iter().zip(wanted) {
        let got = answer(line, &root, true);
        if !wanted.1 && wanted.0.len() < 2 {
            // Wrong words: only that both refuse them.
            assert!(!got.1 && got.0.len() < 2, "{line}: {got:?}");
            continue;
        }
        printed += wanted.0.len();
        assert_eq!(got, wanted, "{line}");
    }
    assert!(printed > 2000, "the questions find little: {printed}");
}

/// The kernel's f2fs is no judge here: the tree that the volume was filled from is.
#[test]
fn find_and_du_know_f2fs() {
    let scratch = Scratch::new();
    let (source, volume) = filled(&scratch, "f2fs");
    for line in [
        r"find ROOT/ -mindepth 1 ! -type d -printf '%P %s %m %M %n %U %G %u %d %y %Y [%l] %T@\n'",
        r"find ROOT/ -mindepth 1 -type d -printf '%P %m %U %G %y %T+\n'",
        "find ROOT/ -mindepth 1 -links +1 -type f -o -empty -o -perm /7000 -o -newermt 2025-01-01 -type f",
        "find ROOT/a ROOT/many -depth -iname '*F*' -size -3 ! -nouser",
        r"find ROOT/a -type p,c,b -printf '%P %y\n'",
        "du -ab ROOT/a/f5000 ROOT/many/File.9 ROOT/many/ä ROOT/a/l1",
        "du -sbc ROOT/a/f1 ROOT/a/b/hard ROOT/many/hard2",
    ] {
        let wanted = answer(line, source.to_str().unwrap(), false);
        let got = answer(line, &format!("{}:", volume.display()), true);
        assert_eq!(got, wanted, "{line}");
        assert!(wanted.1 && wanted.0.len() > 2, "{line}: {wanted:?}");
    }
}

#[test]
fn find_deletes_what_it_finds() {
    let scratch = Scratch::new();
    for kind in ["ext4", "f2fs"] {
        let (source, volume) = filled(&scratch, kind);
        let copy = scratch.join(&format!("{kind}.copy"));
        run("cp", ["-a".as_ref(), source.as_os_str(), copy.as_os_str()]).expect(0);
        let at = format!("{}:", volume.display());
        for line in [
            "find ROOT/many -name 'File.1*' -delete -print",
            "find ROOT/a/b -mindepth 1 -delete",
            "find ROOT/a -name b -o -name c -delete",
            "find ROOT/ -name a -delete",
            "find ROOT/empty ROOT/.hid -delete",
            "find ROOT/etc -name passwd -delete -o -print",
        ] {
            let wanted = answer(line, copy.to_str().unwrap(), false);
            assert_eq!(answer(line, &at, true), wanted, "{kind}: {line}");
        }
        let names = r"find ROOT/ -mindepth 1 ! -name lost+found -printf '%P %y %n\n'";
        let left = answer(names, copy.to_str().unwrap(), false);
        assert_eq!(answer(names, &at, true), left, "{kind}");
        assert!(left.0.len() > 20, "{left:?}");
        match kind {
            "f2fs" => drop(steadfs_suite::f2fs::check_clean(&volume, "after -delete")),
            _ => Image::at(volume).check_clean(),
        }
    }
}

/// What cannot be read is reported, the rest is found, and the exit code is 1.
#[test]
fn find_and_du_go_on_after_errors() {
    let scratch = Scratch::new();
    let (_, volume) = filled(&scratch, "ext4");
    let image = Image::at(volume.clone());
    image.debugfs("clri /a/f5000");
    image.debugfs("clri /many");
    let at = format!("{}:", volume.display());
    for command in ["find", "du"] {
        let output = steadfs([command, &at]);
        assert_eq!(output.code(), 1, "{}", output.err);
        for path in ["/a/f5000", "/many"] {
            assert!(
                output
                    .err
                    .contains(&format!("{at}{path}: volume is corrupt")),
                "{}",
                output.err
            );
        }
        assert!(
            output.out.contains("/a/b/c\n") && output.out.contains("/etc\n"),
            "{}",
            output.out
        );
    }
    let found = steadfs([
        "find",
        &format!("{at}/none"),
        &format!("{at}/etc"),
        "-type",
        "d",
    ]);
    assert_eq!((found.code(), &*found.out), (1, &*format!("{at}/etc\n")));
    assert!(found.err.contains("/none: no such file"), "{}", found.err);
}

#[test]
fn find_refuses_what_it_does_not_have() {
    let scratch = Scratch::new();
    let (_, volume) = filled(&scratch, "ext4");
    let at = |path: &str| format!("{}:{path}", volume.display());
    for (words, why) in [
        (vec!["-exec", "rm", "{}", ";"], "-print0 with xargs -0"),
        (vec!["-regex", "x"], "-path or -name"),
        (vec!["-L"], "are not followed"),
        (vec!["-fprint", "x"], "redirect standard output"),
        (
            vec!["--sandbox=off"],
            "options stand before the first IMAGE",
        ),
        (vec!["-name", "a", "b"], "a pattern needs quotes"),
        (vec!["-printf", "%Z"], "%Z is not supported"),
        (
            vec!["-user", "nosuchuser"],
            "is not in /etc/passwd of the volume",
        ),
        (vec!["-prune", "-delete"], "write -depth if that is meant"),
    ] {
        let output = steadfs([vec!["find", &at("/")], words.clone()].concat());
        assert_eq!(
            (output.code(), &*output.out),
            (1, ""),
            "{words:?}: {}",
            output.err
        );
        assert!(output.err.contains(why), "{words:?}: {}", output.err);
    }
    let none = steadfs(["find", "-name", "x", &at("/")]);
    assert!(
        none.code() == 1 && none.err.contains("needs IMAGE:/PATH before"),
        "{}",
        none.err
    );
    // Patterns of starting points, links that are named, options of the volume.
    let found = steadfs(["find", "-o", "ro", &at("/m*/File.2?"), "-name", "*5"]).expect(0);
    assert_eq!(found.out, format!("{}\n", at("/many/File.25")));
    let followed = steadfs(["find", "-H", &at("/a/dirlink"), "-name", "none"]).expect(0);
    assert_eq!(followed.out, format!("{}\n", at("/a/dirlink/c/none")));
}
