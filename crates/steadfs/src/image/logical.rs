//! The logical partitions of an Android super image, as a table.

use std::borrow::Cow;
use std::io;

use steadfs_block::BlockSource;
use steadfs_stack::{Map, Source, is_super, logical_partitions};

use super::partitions::{Partition, Table};
use super::{Holds, word_for};

/// The table of a super image, if it is one.
pub(super) fn table(src: &dyn BlockSource, holds: Holds<'_>) -> Option<Table> {
    if !is_super(src) {
        return None;
    }
    let table = |flaw, partitions| Table {
        scheme: "Android super",
        flaw,
        partitions,
        base: 0,
        has_places: false,
    };
    let found = match logical_partitions(src) {
        Ok(found) => found,
        Err(why) => return Some(table(Some(Cow::Owned(format!("which {why}"))), Vec::new())),
    };
    let partitions = found.into_iter().zip(1..).map(|(logical, number)| {
        let mut part = Partition {
            number,
            start: 0,
            bytes: logical.map.size(),
            kind: "logical".to_owned(),
            name: logical.name,
            holds: None,
            is_volume: false,
            label: String::new(),
            map: None,
        };
        let within = MappedBytes {
            src,
            map: &logical.map,
        };
        if let Some(volume) = holds(&within, 0) {
            part.holds = Some(volume.to_string());
            part.is_volume = true;
            part.label = volume.label;
        } else {
            part.holds = word_for(&within, 0, part.bytes).map(str::to_owned);
        }
        part.map = Some(logical.map);
        part
    });
    Some(table(None, partitions.collect()))
}

/// A logical partition's bytes.
struct MappedBytes<'a> {
    src: &'a dyn BlockSource,
    map: &'a Map,
}

impl BlockSource for MappedBytes<'_> {
    fn size_bytes(&self) -> u64 {
        self.map.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut rest = buf;
        for (len, source) in self.map.pieces(offset, rest.len() as u64) {
            let (piece, after) = rest.split_at_mut(len as usize);
            match source {
                Source::Below(at) if at.saturating_add(len) <= self.src.size_bytes() => {
                    self.src.read(at, piece)?;
                }
                Source::Below(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // A logical partition has no other fills.
                Source::Fill(_) => piece.fill(0),
            }
            rest = after;
        }
        match rest {
            [] => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
