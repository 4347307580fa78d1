//! What a reader and a sender of PROXY headers share: the parts of version 2 of the protocol
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>, section 2.2).

/// What each header begins with.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The version and the command of a connection that is the sender's own.
pub const LOCAL: u8 = 0x20;

/// The bytes of a header before its addresses: the signature, the version with the command, the
/// family, and the length of what follows.
pub const FIXED_BYTES: usize = 16;

/// The header of a connection that is the sender's own, to see whether a server is well. It has no
/// addresses.
pub fn own_header() -> [u8; FIXED_BYTES] {
    let mut header = [0; FIXED_BYTES];
    header[..SIGNATURE.len()].copy_from_slice(&SIGNATURE);
    header[SIGNATURE.len()] = LOCAL;
    header
}
