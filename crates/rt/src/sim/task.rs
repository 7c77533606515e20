//! The handle of a simulated task.

use std::sync::Arc;

use super::state::TaskId;
use super::world;

/// The value of an ended task.
#[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
type Slot<T> = Arc<parking_lot::Mutex<Option<T>>>;

/// The handle of a simulated task.
pub(crate) struct SimJoin<T> {
    value: Slot<T>,
    id: TaskId,
    world: u64,
}

impl<T: Send + 'static> SimJoin<T> {
    pub(crate) fn spawn(name: &str, f: impl FnOnce() -> T + 'static) -> Self {
        let value: Slot<T> = Arc::default();
        let slot = Arc::clone(&value);
        world::with(|world| Self {
            value,
            id: world.spawn(name, move || {
                let value = f();
                *slot.lock() = Some(value);
            }),
            world: world.id(),
        })
    }
}

impl<T> SimJoin<T> {
    pub(crate) fn join(self) -> T {
        // The number of an ended task may be in use by another task already: check the value first.
        if !self.is_finished() {
            let same_world = world::simulated() && world::with(|world| world.id()) == self.world;
            assert!(
                same_world,
                "a task can be joined inside its own simulation only"
            );
            world::wait_for_end(self.id);
        }
        let value = self.value.lock().take();
        value.expect("an ended task has stored its value, since a panic ends the run")
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.value.lock().is_some()
    }
}
