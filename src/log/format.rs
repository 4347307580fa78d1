#![doc = include_str!("../../log_format.md")]
