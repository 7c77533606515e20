//! The smallest of the last values: a minimum that is forgotten.

/// Values in one window of the minimum.
const WINDOW: u32 = 32;

/// The smallest of the last 32 to 64 values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowMin {
    /// The smallest of this window, and of the last full window.
    current: Option<u64>,
    last: Option<u64>,
    count: u32,
}

impl WindowMin {
    pub(super) fn add(&mut self, value: u64) {
        self.current = Some(self.current.map_or(value, |least| least.min(value)));
        self.count += 1;
        if self.count == WINDOW {
            (self.last, self.current, self.count) = (self.current, None, 0);
        }
    }

    /// `None` before the first value.
    pub(super) fn get(&self) -> Option<u64> {
        [self.current, self.last].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_is_forgotten_after_two_windows() {
        let mut least = WindowMin::default();
        assert_eq!(least.get(), None);
        least.add(3);
        for n in 1..2 * WINDOW {
            assert_eq!(least.get(), Some(3), "{n}");
            least.add(7);
        }
        assert_eq!(least.get(), Some(7));
    }
}
