//! Objects of the library that belong to an object of Python.
//!
//! **Problem.** A thread may close an object while another one is in a call on it, without the interpreter's lock; and after
//! fork(2) the child has copies of objects whose threads and locks it does not have.
//!
//! **Rule.** A call takes a reference of its own ([`Handle::get`]); what is closed ends with the last call on it. A copy in a
//! forked child is neither used nor dropped: it would write to the volume of its parent.

use std::mem;
use std::process;
use std::sync::Arc;

use pyo3::PyResult;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use steadfs_rt::{Mutex, Rank};

/// An object that can be closed.
pub struct Handle<T> {
    pid: u32,
    slot: Mutex<Option<Arc<T>>>,
    /// What the object is, for messages.
    what: &'static str,
}

impl<T> Handle<T> {
    pub fn new(what: &'static str, object: T) -> Self {
        Self {
            pid: process::id(),
            slot: Mutex::new(Rank::Leaf, Some(Arc::new(object))),
            what,
        }
    }

    /// The object, for one call.
    pub fn get(&self) -> PyResult<Arc<T>> {
        self.check_process()?;
        let object = self.slot.lock().clone();
        object.ok_or_else(|| PyValueError::new_err(format!("the {} is closed", self.what)))
    }

    /// Closes the object for later calls. `None`: it is closed.
    pub fn take(&self) -> PyResult<Option<Arc<T>>> {
        self.check_process()?;
        Ok(self.slot.lock().take())
    }

    /// Opens it again after [`Handle::take`].
    pub fn put_back(&self, object: Arc<T>) {
        *self.slot.lock() = Some(object);
    }

    /// Whether it is closed, or belongs to the parent of this process.
    pub fn is_closed(&self) -> bool {
        self.is_of_parent() || self.slot.lock().is_none()
    }

    /// Whether this process is a forked child of the one that opened it.
    pub fn is_of_parent(&self) -> bool {
        self.pid != process::id()
    }

    fn check_process(&self) -> PyResult<()> {
        if self.is_of_parent() {
            let (what, pid) = (self.what, self.pid);
            return Err(PyRuntimeError::new_err(format!(
                "the {what} was opened by process {pid}: a forked process must open the volume itself"
            )));
        }
        Ok(())
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.is_of_parent() {
            mem::forget(self.slot.lock().take());
        }
    }
}
