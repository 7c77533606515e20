//! Devices, bios, the request queue and its statistics.
