//! What of media others need already.

pub mod network;
