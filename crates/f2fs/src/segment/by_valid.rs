//! Dirty sections by their number of valid blocks: finds the emptiest in constant time.

use super::map::BitSet;

const NONE: u32 = u32::MAX;

/// Buckets of sections with the same number of valid blocks, doubly linked: a change takes constant time. Eight bytes a
/// section.
pub(super) struct ByValid {
    /// The first section of each list.
    heads: Vec<u32>,
    /// Lists that are not empty.
    used: BitSet,
    links: Vec<Links>,
    /// The list of each section.
    list_of: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Links {
    before: u32,
    behind: u32,
}

impl ByValid {
    /// For `sections` sections of `size` blocks, none of them listed.
    pub fn new(sections: u32, size: u32) -> Self {
        assert!(size > 0, "a section has blocks");
        let links = Links {
            before: NONE,
            behind: NONE,
        };
        Self {
            heads: vec![NONE; size as usize + 1],
            used: BitSet::new(size + 1),
            links: vec![links; sections as usize],
            list_of: vec![NONE; sections as usize],
        }
    }

    /// Lists a section under its number of valid blocks; `None` removes it.
    pub fn put(&mut self, section: u32, valid: Option<u32>) {
        let new = valid.unwrap_or(NONE);
        assert!(
            new == NONE || (new as usize) < self.heads.len(),
            "a section has at most its size of valid blocks"
        );
        let old = self.list_of[section as usize];
        if old == new {
            return;
        }
        if old != NONE {
            self.unlink(section, old);
        }
        if new != NONE {
            let behind = std::mem::replace(&mut self.heads[new as usize], section);
            if behind != NONE {
                debug_assert!(
                    self.links[behind as usize].before == NONE,
                    "no section is before the head of a list"
                );
                self.links[behind as usize].before = section;
            }
            self.links[section as usize] = Links {
                before: NONE,
                behind,
            };
            self.used.put(new, true);
        }
        self.list_of[section as usize] = new;
    }

    fn unlink(&mut self, section: u32, list: u32) {
        assert!(
            self.list_of[section as usize] == list && self.used.get(list),
            "a section is removed from its own list"
        );
        let Links { before, behind } = self.links[section as usize];
        match before {
            NONE => self.heads[list as usize] = behind,
            before => self.links[before as usize].behind = behind,
        }
        if behind != NONE {
            self.links[behind as usize].before = before;
        }
        if self.heads[list as usize] == NONE {
            self.used.put(list, false);
        }
    }

    /// Listed sections, those with the fewest valid blocks first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let mut list = 0;
        let mut at = NONE;
        std::iter::from_fn(move || {
            if at == NONE {
                let next = self.used.next(list, self.heads.len() as u32)?;
                (list, at) = (next + 1, self.heads[next as usize]);
            }
            let found = at;
            debug_assert!(
                self.list_of[found as usize] == list - 1,
                "a section is in the list of its number of valid blocks"
            );
            at = self.links[found as usize].behind;
            Some(found)
        })
    }

    /// Asserts that each section is in its list and in no other.
    #[cfg(test)]
    pub fn check(&self) {
        let mut seen = 0;
        for (list, head) in (0..).zip(&self.heads) {
            let mut at = *head;
            let mut before = NONE;
            assert_eq!(self.used.get(list), at != NONE, "list {list}");
            while at != NONE {
                assert_eq!(self.list_of[at as usize], list);
                assert_eq!(self.links[at as usize].before, before);
                seen += 1;
                (before, at) = (at, self.links[at as usize].behind);
            }
        }
        let listed = self.list_of.iter().filter(|list| **list != NONE);
        assert_eq!(seen, listed.count());
    }
}
