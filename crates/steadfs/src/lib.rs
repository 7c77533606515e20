//! steadfs as a library: probe, open, format and mount volumes.
