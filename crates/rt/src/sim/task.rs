//! The simulated side of a task's handle.

use std::sync::Arc;

use super::state::TaskId;
use super::world;

/// Where a task puts its value when it ends.
#[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
type Slot<T> = Arc<parking_lot::Mutex<Option<T>>>;

/// Waits for a simulated task's end.
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
        // An ended task's number may belong to another one already: look at the value first.
        if !self.is_finished() {
            let here = world::simulated() && world::with(|world| world.id()) == self.world;
            assert!(here, "a task of a simulation that is over cannot be joined");
            world::wait_for_end(self.id);
        }
        let value = self.value.lock().take();
        value.expect("a task that ended has put its value there; a panic ends the run")
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.value.lock().is_some()
    }
}
