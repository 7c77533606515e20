//! `tree`: the expected texts are those that tree(1) 2.1.0 prints for the tree that the volume was filled from, but for
//! owners, which have no names on the volume, sizes of directories, escaped backslashes, and absolute links, which lead
//! into the volume.

use super::*;

const TREE: &str = r"
mkdir -p a/b/c empty .hid/deep
printf 12345 >a/b/file; head -c 5000 /dev/zero >a/f5000; truncate -s 1200000 a/z; printf x >.hid/deep/x
ln -s b a/link; ln -s nowhere a/none; ln -s /a/b abs; mkfifo a/fifo; printf '' >'sp ace'; printf '' >$'nl\n\\'
chown 1000:33 a/f5000; chown 5:7 a/b/file; chmod 644 a/z
chmod 4755 a/f5000; chmod 2750 a/b; chmod 755 a a/b/c empty .hid .hid/deep; chmod 600 a/b/file
";

const WHOLE: &str = r"@/a
├── b
│   ├── c
│   └── file
├── f5000
├── fifo
├── link -> b
├── none -> nowhere
└── z
@/.hid
└── deep
    └── x
@/empty

6 directories, 6 files
";

const ATTRIBUTES: &str = r"@/a
├── [drwxr-s--- 0        0        3.4K]  b
│   ├── [drwxr-xr-x 0        0        3.4K]  c
│   └── [-rw------- 5        7           5]  file
├── [-rwsr-xr-x 1000     33       4.9K]  f5000
├── [prw-r--r-- 0        0           0]  fifo
├── [lrwxrwxrwx 0        0           1]  link -> b
├── [lrwxrwxrwx 0        0           7]  none -> nowhere
└── [-rw-r--r-- 0        0        1.1M]  z
";

const DIRECTORIES: &str = r"@/
|-- @/.hid
|   `-- @/.hid/deep
|-- @/a
|   |-- @/a/b
|   |   `-- @/a/b/c
|   `-- @/a/link -> b
|-- @/abs -> /a/b
`-- @/empty

9 directories
";

const FLAT: &str = r"@/
[          4]  abs -> /a/b
[       3488]  a
[       3488]  empty
[          0]  nl\012\\
[          0]  sp ace
";

fn filled(scratch: &Scratch, kind: &str) -> (PathBuf, PathBuf) {
    filled_by(scratch, kind, TREE)
}

/// The output of `tree`, with `@` for the image.
fn shown(volume: &std::path::Path, words: &[&str]) -> (String, i32, String) {
    let at = format!("{}:", volume.display());
    let words = words.iter().map(|word| word.replace('@', &at));
    let output = steadfs(["tree".to_owned()].into_iter().chain(words));
    let code = output.code();
    // The lines have spaces that do not break.
    let text = output.out.replace(&at, "@").replace('\u{a0}', " ");
    (text, code, output.err)
}

#[test]
fn trees_are_shown_as_by_tree() {
    let scratch = Scratch::new();
    let (source, volume) = filled(&scratch, "f2fs");
    for (words, wanted) in [
        (&["@/a", "@/.hid", "@/empty"][..], WHOLE),
        (&["-df", "-a", "--charset=ascii", "@"], DIRECTORIES),
        (&["-pugh", "--noreport", "@/a"], ATTRIBUTES),
    ] {
        let (out, code, err) = shown(&volume, words);
        // The top has the same attributes in front of it.
        let out = match out.strip_prefix("[drwxr-xr-x 0        0        3.4K]  ") {
            Some(rest) => rest.to_owned(),
            None => out,
        };
        assert_eq!((out.as_str(), code), (wanted, 0), "{words:?}: {err}");
    }
    let (out, ..) = shown(&volume, &["-is", "-L", "1", "--noreport", "@"]);
    let mut lines: Vec<&str> = FLAT.lines().skip(1).collect();
    lines.sort_unstable_by_key(|line| line[15..].to_owned());
    assert_eq!(out.lines().skip(1).collect::<Vec<_>>(), lines);
    // GNU find lists the same files.
    let find = format!(
        "cd {}; find . -mindepth 1 ! -name 'nl*' ! -type l",
        source.display()
    );
    let found = run("bash", ["-c", &find]).expect(0).out;
    let mut wanted: Vec<String> = found
        .lines()
        .map(|path| path.replacen('.', "@", 1))
        .collect();
    wanted.sort();
    let (out, ..) = shown(&volume, &["-aif", "--noreport", "@"]);
    let is_named = |line: &&str| !line.contains(" -> ") && !line.contains("nl\\012");
    let mut got: Vec<String> = out
        .lines()
        .skip(1)
        .filter(is_named)
        .map(str::to_owned)
        .collect();
    got.sort();
    assert_eq!(got, wanted);
}

/// What cannot be read has a line, is reported, and the exit code is 1.
#[test]
fn trees_go_on_after_errors() {
    let scratch = Scratch::new();
    let (_, volume) = filled(&scratch, "ext4");
    Image::at(volume.clone()).debugfs("clri /a/b/file");
    Image::at(volume.clone()).debugfs("clri /a/b/c");
    let (out, code, err) = shown(&volume, &["-pi", "@/a/b"]);
    assert_eq!(code, 1, "{err}");
    assert_eq!(
        out,
        "[drwxr-s---]  @/a/b\n[?]  c\n[?]  file\n\n1 directory, 2 files\n"
    );
    assert!(
        err.contains("/a/b/c: volume is corrupt") && err.contains("/a/b/file: "),
        "{err}"
    );
    let (out, code, err) = shown(&volume, &["--noreport", "@/none", "@/a/z", "@/.hid"]);
    assert_eq!((out.as_str(), code), ("@/.hid\n└── deep\n    └── x\n", 1));
    assert!(
        err.contains("/none: no such file") && err.contains("/a/z: not a directory"),
        "{err}"
    );
    assert_eq!(shown(&volume, &["-L", "0", "@"]).1, 2);
}
