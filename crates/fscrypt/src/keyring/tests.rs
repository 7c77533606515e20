use steadfs_vfs::FileKind;

use super::*;

const FILE: FileOf<'static> = FileOf {
    ino: 12,
    kind: FileKind::Regular,
    folds: false,
    uuid: &[3; 16],
    block_bits: 12,
};

fn context(key: KeyName, nonce: u8) -> Context {
    let mut bytes = vec![2, 1, 4, 0, 0, 0, 0, 0];
    match key {
        KeyName::Identifier(identifier) => bytes.extend(identifier),
        KeyName::Descriptor(descriptor) => bytes = [&[1, 1, 4, 0][..], &descriptor].concat(),
    }
    bytes.extend([nonce; 16]);
    Context::parse(&bytes).unwrap()
}

/// What Linux 6.18 returned for this key (FS_IOC_ADD_ENCRYPTION_KEY).
#[test]
fn an_identifier_is_that_of_linux() {
    let name = key_identifier(&[0x5a; 64]);
    assert_eq!(name.to_string(), "29028e0936eaa81dcfae55bb7e802a83");
}

#[test]
fn files_have_keys_while_their_master_key_is_there() {
    let ring = Keyring::default();
    let never = || panic!("a volume without keys reads no context");
    assert!(ring.file_key(0, &FILE, never).unwrap().is_none());
    let name = ring.add(None, &[0x5a; 64]).unwrap();
    let mut loads = 0;
    for _ in 0..2 {
        let key = ring.file_key(0, &FILE, || {
            loads += 1;
            Ok(context(name, 1))
        });
        let (key, mut block) = (key.unwrap().unwrap(), [0; 4096]);
        key.decrypt(4096, &mut block);
        assert_ne!(block[..16], [0; 16]);
        key.encrypt(4096, &mut block);
        assert_eq!(block, [0; 4096]);
    }
    assert_eq!(loads, 1);
    ring.remove(name).unwrap();
    assert!(ring.file_key(0, &FILE, never).unwrap().is_none());
    assert_eq!(ring.remove(name), Err(FsError::NoKey));

    // Another key does not open it; a key of version 1 does not open a file of version 2.
    let other = ring.add(None, &[0x5b; 64]).unwrap();
    assert_ne!(other, name);
    ring.add(Some([1; 8]), &[0x5a; 64]).unwrap();
    let load = || Ok(context(name, 1));
    assert!(ring.file_key(0, &FILE, load).unwrap().is_none());
}

#[test]
fn a_master_key_that_is_too_short_for_a_policy_opens_nothing() {
    let ring = Keyring::default();
    for bad in [0, 15, 65] {
        assert!(ring.add(None, &vec![1; bad]).is_err(), "{bad}");
    }
    let name = ring.add(None, &[1; 16]).unwrap();
    let load = || Ok(context(name, 1));
    assert!(ring.file_key(0, &FILE, load).unwrap().is_none());
    let name = ring.add(Some([2; 8]), &[1; 63]).unwrap();
    let load = || Ok(context(name, 1));
    let file = FileOf { ino: 13, ..FILE };
    assert!(ring.file_key(0, &file, load).unwrap().is_none());
}

#[test]
fn names_come_back() {
    let ring = Keyring::default();
    let name = ring.add(None, &[7; 32]).unwrap();
    let file = FileOf {
        kind: FileKind::Directory,
        ..FILE
    };
    let key = ring.file_key(0, &file, || Ok(context(name, 1)));
    let key = key.unwrap().unwrap();
    for len in [1, 15, 16, 17, 100, 254, 255] {
        let plain = vec![b'n'; len];
        let encrypted = key.encrypt_name(&plain);
        assert_eq!(encrypted.len(), len.max(16).next_multiple_of(4).min(255));
        assert_eq!(key.decrypt_name(&encrypted).unwrap(), plain);
    }
    assert!(key.decrypt_name(&[1; 15]).is_err());
    for bad in ["a/b", ".", ".."] {
        let encrypted = key.encrypt_name(bad.as_bytes());
        assert!(key.decrypt_name(&encrypted).is_err(), "{bad}");
    }
    assert_eq!(key.hash_name(b"name"), None);
}

#[test]
fn the_control_file_adds_and_removes() {
    let ring = Keyring::default();
    let key = "5A".repeat(64);
    ring.write(format!("add v2 {key}\n").as_bytes()).unwrap();
    ring.write(format!("add 0123456789abcdef {key}").as_bytes())
        .unwrap();
    let v2 = key_identifier(&[0x5a; 64]);
    assert_eq!(ring.show(), format!("v1 0123456789abcdef\nv2 {v2}\n"));
    ring.write(format!("remove {v2}\n").as_bytes()).unwrap();
    ring.write(b"remove 0123456789abcdef").unwrap();
    assert_eq!(ring.show(), "");
    for bad in [
        "",
        "add v2",
        "add v2 5a",
        "add v2 xx",
        "add 01 5a",
        "remove x",
        "status",
    ] {
        assert!(ring.write(bad.as_bytes()).is_err(), "{bad}");
    }
}
