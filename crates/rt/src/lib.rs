//! Tasks, time, ranked locks, wait queues and randomness: real or simulated.
