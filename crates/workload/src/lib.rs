//! File-system operations as data, with an oracle and a shrinker.
