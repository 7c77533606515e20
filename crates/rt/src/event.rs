//! A one-shot event with a value.

use crate::{Condvar, Mutex, Rank};

/// An event that happens once; any number of tasks can wait for it.
pub struct Event<T> {
    value: Mutex<Option<T>>,
    set: Condvar,
}

impl<T: Clone> Event<T> {
    /// An event that has not happened.
    pub const fn new() -> Self {
        Self {
            value: Mutex::new(Rank::Leaf, None),
            set: Condvar::new(),
        }
    }

    /// Sets the event's value and wakes all waiters.
    ///
    /// # Panics
    /// If the event has happened before.
    pub fn set(&self, value: T) {
        let mut slot = self.value.lock();
        assert!(slot.is_none(), "an event happens once");
        *slot = Some(value);
        self.set.notify_all();
    }

    /// Waits until the event has happened.
    pub fn wait(&self) -> T {
        let mut slot = self.value.lock();
        loop {
            if let Some(value) = slot.as_ref() {
                return value.clone();
            }
            self.set.wait(&mut slot);
        }
    }

    /// The value, if the event has happened.
    pub fn get(&self) -> Option<T> {
        self.value.lock().clone()
    }
}

impl<T: Clone> Default for Event<T> {
    fn default() -> Self {
        Self::new()
    }
}
