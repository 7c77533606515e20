use std::collections::BTreeMap;

use super::*;

/// A file in memory with its info, as a file system has it.
struct File {
    content: Content,
    info: Info,
}

impl File {
    fn new() -> Self {
        let info = Info::default();
        let mut content = Content::default();
        content.write(0, &info.to_block(Kind::User)).unwrap();
        content.write(tree::ROOT, &[0; BLOCK_SIZE]).unwrap();
        Self { content, info }
    }

    fn all(&mut self) -> BTreeMap<u32, Entry> {
        let mut found = BTreeMap::new();
        let each = |_, entry: Entry| assert!(found.insert(entry.id, entry).is_none());
        tree::walk(&mut self.content, &self.info, each).unwrap();
        found
    }
}

fn entry(id: u32) -> Entry {
    Entry {
        id,
        inodes: u64::from(id) + 1,
        bytes: 4096 * u64::from(id),
        ..Entry::default()
    }
}

#[test]
fn random_changes_agree_with_a_map() {
    let mut file = File::new();
    let mut expected = BTreeMap::new();
    let mut state = 7u64;
    for step in 0..4000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Near ids share a block of references, far ones have a path of their own.
        let id = match (state >> 60) & 1 {
            0 => (state >> 33) as u32 % 300,
            _ => ((state >> 33) as u32 % 40) << 24 | 7,
        };
        match expected.remove(&id) {
            Some(there) => {
                let found = tree::find(&mut file.content, &file.info, id).unwrap();
                assert_eq!(found.unwrap().1, there, "step {step}");
                tree::remove(&mut file.content, &mut file.info, id).unwrap();
            }
            None => {
                assert!(
                    tree::find(&mut file.content, &file.info, id)
                        .unwrap()
                        .is_none()
                );
                let before = file.info.blocks;
                let place = tree::insert(&mut file.content, &mut file.info, &entry(id)).unwrap();
                assert!(file.info.blocks <= before + tree::GROWTH_MAX);
                let found = tree::find(&mut file.content, &file.info, id).unwrap();
                assert_eq!(found, Some((place, entry(id))));
                expected.insert(id, entry(id));
            }
        }
    }
    assert!(expected.len() > 100);
    assert_eq!(file.all(), expected);
    let ids: Vec<u32> = expected.keys().copied().collect();
    for id in ids {
        tree::remove(&mut file.content, &mut file.info, id).unwrap();
    }
    assert!(file.all().is_empty());
    // All blocks were given up and are used again.
    let most = file.info.blocks;
    tree::insert(&mut file.content, &mut file.info, &entry(5)).unwrap();
    assert_eq!(file.info.blocks, most);
}

#[test]
fn an_entry_of_root_without_usage_is_not_an_unused_one() {
    let root = Entry::default();
    assert_eq!(Entry::parse(&root.to_bytes()), Some(root));
    assert_eq!(Entry::parse(&[0; ENTRY_SIZE]), None);
    let full = Entry {
        id: 0x0102_0304,
        inode_limit: Limit {
            hard: 1,
            soft: 2,
            until: 3,
        },
        inodes: 4,
        block_limit: Limit {
            hard: 5,
            soft: 6,
            until: 7,
        },
        bytes: 8,
    };
    assert_eq!(Entry::parse(&full.to_bytes()), Some(full));
    assert!(!full.is_idle() && root.is_idle());
}

#[test]
fn damage_is_an_error() {
    let mut file = File::new();
    for id in 0..40 {
        tree::insert(&mut file.content, &mut file.info, &entry(id)).unwrap();
    }
    let head = file.info.to_block(Kind::User);
    assert_eq!(Info::of(Kind::User, &head), Ok(file.info));
    assert!(Info::of(Kind::Group, &head).is_err());
    let mut walked = 0;
    for n in tree::ROOT..file.info.blocks {
        for at in (0..BLOCK_SIZE).step_by(4) {
            let mut damaged = file.content.clone();
            let mut block = damaged.read(n).unwrap();
            let word = get32(&block, at) ^ 0x0010_0101;
            put32(&mut block, at, word);
            damaged.write(n, &block).unwrap();
            let mut info = file.info;
            // Each ends, whatever it returns.
            let _ = tree::find(&mut damaged, &info, 3);
            let _ = tree::walk(&mut damaged, &info, |_, _| walked += 1);
            let _ = tree::insert(&mut damaged, &mut info, &entry(41));
            let _ = tree::remove(&mut damaged, &mut info, 7);
        }
    }
    assert!(walked > 1000);
}
