//! The coroutines' stacks, used again and again.

use std::cell::RefCell;

use corosensei::stack::DefaultStack;

/// Bytes of one stack; the host gives memory to the part that is touched.
const STACK_SIZE: usize = 1 << 20;
/// Stacks kept for the next task.
const KEPT: usize = 256;

thread_local! {
    static POOL: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// A stack nobody uses.
pub(crate) fn take() -> DefaultStack {
    let pooled = POOL.with(|pool| pool.borrow_mut().pop());
    pooled.unwrap_or_else(|| {
        DefaultStack::new(STACK_SIZE).expect("the host has address space for a stack")
    })
}

/// Takes back the stack of a task that has ended.
pub(crate) fn give_back(stack: DefaultStack) {
    POOL.with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.len() < KEPT {
            pool.push(stack);
        }
    });
}
