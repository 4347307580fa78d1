//! Two clients nobody here wrote talk to each other.
