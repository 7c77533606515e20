//! End-to-end tests with independent judges.
