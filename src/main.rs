//! The logcabin program.

fn main() {}
