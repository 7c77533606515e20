use super::super::test_images::run;
use super::*;

/// What debugfs computes.
fn judge(kind: &str, seed: &str, name: &str) -> (u32, u32) {
    let out = run(
        "debugfs",
        &["-R", &format!("dx_hash -h {kind} -s {seed} {name}")],
    );
    let hex = |label: &str| {
        let rest = &out[out.find(label).expect("debugfs prints the hash") + label.len()..];
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        u32::from_str_radix(&digits, 16).unwrap()
    };
    (hex("is 0x"), hex("minor 0x"))
}

const NO_SEED: &str = "00000000-0000-0000-0000-000000000000";

#[test]
fn agrees_with_debugfs() {
    let long = "x0123456789".repeat(23);
    let names = [
        "a",
        "abc",
        "abcd",
        "a-file-name.txt",
        "exactly-16-bytes",
        "exactly-32-bytes-in-this-name-ok",
        "longer-than-32-bytes-which-is-one-whole-piece",
        "schöne-grüße",
        &long,
    ];
    for text in [
        NO_SEED,
        "01234567-89ab-cdef-0123-456789abcdef",
        "8d61be38-2263-496a-a75e-505ea93928e3",
    ] {
        let seed = parse_seed(text);
        for name in names {
            for (kind_name, kind) in [
                ("legacy", HashKind::Legacy),
                ("half_md4", HashKind::HalfMd4),
                ("tea", HashKind::Tea),
            ] {
                let params = HashParams {
                    kind,
                    unsigned: false,
                    seed,
                };
                let ours = params.hash(name.as_bytes()).unwrap();
                let theirs = judge(kind_name, text, name);
                assert_eq!(
                    (ours.major, ours.minor),
                    theirs,
                    "{kind_name} {text} {name}"
                );
            }
        }
    }
}

/// A UUID's bytes as four little-endian words, as the superblock has them.
fn parse_seed(text: &str) -> [u32; 4] {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let mut seed = [0; 4];
    for (word, digits) in seed.iter_mut().zip(hex.as_bytes().chunks(8)) {
        let digits = std::str::from_utf8(digits).unwrap();
        *word = u32::from_str_radix(digits, 16).unwrap().swap_bytes();
    }
    seed
}

#[test]
fn signedness_matters_above_127_only() {
    for kind in [HashKind::Legacy, HashKind::HalfMd4, HashKind::Tea] {
        let signed = HashParams {
            kind,
            unsigned: false,
            seed: [1, 2, 3, 4],
        };
        let unsigned = HashParams {
            unsigned: true,
            ..signed
        };
        assert_eq!(signed.hash(b"ascii"), unsigned.hash(b"ascii"));
        // In the first byte of a word the sign is shifted out.
        assert_ne!(signed.hash(b"as\xe4ii"), unsigned.hash(b"as\xe4ii"));
        assert_eq!(HashKind::from_disk(kind.to_disk()), Some(kind));
    }
    let sip = HashParams {
        kind: HashKind::SipHash,
        unsigned: true,
        seed: [0; 4],
    };
    assert_eq!(sip.hash(b"x"), None);
    assert_eq!(HashKind::from_disk(3), None);
}

#[test]
fn folded_names_of_all_code_points_agree_with_debugfs() {
    let image = super::super::test_images::Image::of(&[]);
    let commands = image.beside("commands");
    let mut text = String::new();
    let mut names = Vec::new();
    // debugfs splits a line at these.
    let is_name = |c: &char| !matches!(c, '\0' | '\t' | '\n' | '\r' | ' ' | '"');
    for c in (1..=0x10_FFFF).filter_map(char::from_u32).filter(is_name) {
        // The capital is folded only if all of the name is valid.
        let name = format!("A{c}");
        text.push_str("dx_hash -h half_md4 -c -e utf8 ");
        text.push_str(&name);
        text.push('\n');
        names.push(name);
    }
    std::fs::write(&commands, text).unwrap();
    let out = run("debugfs", &["-f", commands.to_str().unwrap()]);
    let mut hashes = out.split("\nHash of ").skip(1);
    let params = HashParams {
        kind: HashKind::HalfMd4,
        unsigned: false,
        seed: [0; 4],
    };
    for name in names {
        let folded = steadfs_format_base::casefold::FoldedName::new(name.as_bytes());
        let ours = params.hash(folded.hashed()).unwrap();
        let ours = format!("{name} is 0x{:x} (minor 0x{:x})", ours.major, ours.minor);
        let theirs = hashes.next().expect("one line for each name");
        assert!(theirs.starts_with(&ours), "{name:?}: {ours}, {theirs}");
    }
    assert_eq!(hashes.next(), None);
}
