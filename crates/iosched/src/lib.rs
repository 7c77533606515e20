//! I/O scheduling policies: pure state machines without clock, lock or I/O.
