//! A pool of stacks for coroutines.

use std::cell::RefCell;

use corosensei::stack::DefaultStack;

/// Address space of one stack; the host allocates the pages that are touched.
const STACK_BYTES: usize = 1 << 20;
/// Most stacks in the pool.
const POOLED_STACKS_MAX: usize = 256;

thread_local! {
    static POOL: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Returns a stack from the pool, or a new one.
pub(crate) fn take() -> DefaultStack {
    let pooled = POOL.with(|pool| pool.borrow_mut().pop());
    pooled.unwrap_or_else(|| {
        DefaultStack::new(STACK_BYTES).expect("the host has address space for a stack")
    })
}

/// Returns the stack of an ended task to the pool.
pub(crate) fn give_back(stack: DefaultStack) {
    POOL.with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.len() < POOLED_STACKS_MAX {
            pool.push(stack);
        }
    });
}
