//! Where the bytes of a device are on the device below it.

/// What a segment of a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The bytes of the device below, from this one on.
    Below(u64),
    /// Four bytes, repeated from the segment's start on.
    Fill([u8; 4]),
}

impl Source {
    /// Zeros.
    pub const ZERO: Self = Self::Fill([0; 4]);

    /// What is `bytes` behind the start of a segment of this. Fills are repeated from multiples of four bytes on.
    fn after(self, bytes: u64) -> Self {
        match self {
            Self::Below(at) => Self::Below(at + bytes),
            Self::Fill(pattern) => {
                let mut turned = pattern;
                turned.rotate_left((bytes % 4) as usize);
                Self::Fill(turned)
            }
        }
    }
}

/// Why a segment cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The segments are longer than any device.
    TooLong,
    /// There are more segments than [`Map::SEGMENTS_MAX`].
    TooMany,
}

/// The segments of a device, without gaps, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// First byte and source of each segment.
    segments: Vec<(u64, Source)>,
    size: u64,
}

impl Map {
    /// Most segments, which need 24 bytes each.
    pub const SEGMENTS_MAX: usize = 1 << 22;

    /// Adds a segment of `len` bytes behind the last one.
    ///
    /// # Errors
    /// The map becomes too long. It is not changed then.
    pub fn push(&mut self, len: u64, source: Source) -> Result<(), MapError> {
        let end = self.size.checked_add(len).ok_or(MapError::TooLong)?;
        if let Source::Below(at) = source
            && at.checked_add(len).is_none()
        {
            return Err(MapError::TooLong);
        }
        if len == 0 {
            return Ok(());
        }
        let continues = self
            .segments
            .last()
            .is_some_and(|(start, last)| last.after(self.size - start) == source);
        if !continues {
            if self.segments.len() >= Self::SEGMENTS_MAX {
                return Err(MapError::TooMany);
            }
            self.segments.push((self.size, source));
        }
        self.size = end;
        Ok(())
    }

    /// The bytes of all segments.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The byte below where the map begins, if the map is one segment of the device below.
    pub(crate) fn as_window(&self) -> Option<u64> {
        match self.segments[..] {
            [(_, Source::Below(at))] => Some(at),
            _ => None,
        }
    }

    /// The pieces of a range, with their lengths. What is behind the end has none.
    pub fn pieces(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, Source)> + '_ {
        let end = at.saturating_add(len).min(self.size);
        let first = self.segments.partition_point(|(start, _)| *start <= at);
        let mut next = first.saturating_sub(1);
        let mut at = at;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (start, source) = self.segments[next];
            next += 1;
            let stop = self.segments.get(next).map_or(self.size, |(stop, _)| *stop);
            let piece = (stop.min(end) - at, source.after(at - start));
            at += piece.0;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_continue_are_one() {
        let mut map = Map::default();
        map.push(512, Source::Below(1024)).unwrap();
        map.push(0, Source::ZERO).unwrap();
        map.push(512, Source::Below(1536)).unwrap();
        assert_eq!((map.as_window(), map.size()), (Some(1024), 1024));
        map.push(10, Source::Fill([1, 2, 3, 4])).unwrap();
        map.push(10, Source::Fill([3, 4, 1, 2])).unwrap();
        assert_eq!(map.segments.len(), 2);
        let found: Vec<_> = map.pieces(1000, 50).collect();
        let expected = [(24, Source::Below(2024)), (20, Source::Fill([1, 2, 3, 4]))];
        assert_eq!(found, expected);
        let found: Vec<_> = map.pieces(1027, 2).collect();
        assert_eq!(found, [(2, Source::Fill([4, 1, 2, 3]))]);
        assert_eq!(map.pieces(1044, 1).count(), 0);
    }

    #[test]
    fn a_map_has_an_end() {
        let mut map = Map::default();
        assert_eq!(
            map.push(2, Source::Below(u64::MAX - 1)),
            Err(MapError::TooLong)
        );
        map.push(u64::MAX, Source::ZERO).unwrap();
        assert_eq!(map.push(1, Source::ZERO), Err(MapError::TooLong));
        assert_eq!(map.size(), u64::MAX);
    }
}
